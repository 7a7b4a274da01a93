// SPDX-License-Identifier: MIT
#include "kernels/runtime/machine.h"

#include <string.h>

#include "kernels/runtime/backend.h"

namespace tilekiln {

Machine::Machine(const Table& table, const Limit& limit, Device device) : table_(table), device_(device) {
  // The name of a target begins with that of its backend, so it says which devices it limits.
  bool of_another = false;
  for (uint32_t i = 0; i < table_.target_count; ++i) {
    const Target& target = table_.targets[i];
    Use& use = use_[target.index];
    use.target = &target;
    use.same_device = (target.backend == nullptr ? Device().type : target.backend->device_type) == device_.type;
    use.supported =
        use.same_device && (target.backend == nullptr ? target.supported() : target.backend->has(device_, target));
    const size_t length = strcspn(target.name, "-") + 1;
    of_another = of_another || (!use.same_device && strncmp(target.name, limit.target, length) == 0);
  }
  by_name_ = *limit.target != 0 && !of_another;
  limit_ = by_name_ ? limit.target : device_.type == Device().type ? limit.isa : "";
  const Target* top = nullptr;
  for (uint32_t i = 0; i < table_.target_count && *limit_ != 0; ++i) {
    const Target& target = table_.targets[i];
    if (strcmp(by_name_ ? target.name : target.isa, limit_) == 0 && use_[target.index].supported) top = &target;
  }
  limit_known_ = *limit_ == 0 || top != nullptr;
  for (uint32_t i = 0; i < table_.target_count; ++i) {
    const Target& target = table_.targets[i];
    Use& use = use_[target.index];
    use.usable = use.supported && limit_known_ && (top == nullptr || target.order <= top->order);
    if (use.usable && (best_ == nullptr || target.order > best_->order)) best_ = &target;
  }
}

Machine Machine::asked() const {
  Machine after = *this;
  after.best_ = nullptr;
  for (uint32_t i = 0; i < table_.target_count; ++i) {
    const Target& target = table_.targets[i];
    Use& use = after.use_[target.index];
    if (use.usable && target.refusal != nullptr) use.refused = target.refusal();
    use.usable = use.usable && use.refused == nullptr;
    if (use.usable && (after.best_ == nullptr || target.order > after.best_->order)) after.best_ = &target;
  }
  return after;
}

tilekiln_status Machine::status() const {
  if (limit_known_) return TILEKILN_OK;
  Text text(error_buffer(), error_capacity);
  text.add("%s: was \"%s\"", limit_name(), limit_);
  int known = 0;
  for (uint32_t i = 0; i < table_.target_count; ++i) {
    if (strcmp(word(table_.targets[i]), limit_) == 0) text.add(", which this machine has not");
    known += use_[table_.targets[i].index].supported;
  }
  if (known == 0) {
    text.add("; library %s holds nothing this machine can run: build it here with scons receipt=%s", table_.receipt,
             table_.receipt);
    return TILEKILN_INVALID_ARGUMENT;
  }
  text.add(", must be one that library %s holds and this machine has (", table_.receipt);
  const char* separator = "";
  for (uint32_t i = 0; i < table_.target_count; ++i) {
    if (!use_[table_.targets[i].index].supported) continue;
    text.add("%s%s", separator, word(table_.targets[i]));
    separator = ", ";
  }
  text.add(") or unset");
  return TILEKILN_INVALID_ARGUMENT;
}

}  // namespace tilekiln
