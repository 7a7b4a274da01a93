// SPDX-License-Identifier: MIT
#include "kernels/runtime/instead.h"

#include <string.h>

#include <memory>

#include "kernels/runtime/library.h"
#include "kernels/runtime/tuned.h"

namespace tilekiln {

bool is_short(const Instead& rule, const tilekiln_tensor* const* arrays, int count, bool exchanged) {
  for (int i = 0; i < count; ++i) {
    if (arrays[i] == nullptr || arrays[i]->ndim != rule.ndim) return false;
  }
  const tilekiln_tensor& first = *arrays[0];
  const int place = rule.place[exchanged ? 1 : 0];
  const Instead::Most* most = rule.most;
  while (most->length != 0 && most->device_type != first.device_type) ++most;
  const int64_t length = first.shape[place], heads = first.shape[3 - place];
  if (length > most->length && length > most->grouped) return false;
  for (int i = 1; i < count; ++i) {
    const int64_t* const shape = arrays[i]->shape;
    if (length > most->length) {
      const int64_t shared = shape[3 - place] > 0 ? heads / shape[3 - place] : 0;
      if (length > most->times * shared || shape[place] < most->keys) return false;
    }
    // Heads stand in for keys where the query is one: as many of them will do.
    const bool pays = shape[place] >= rule.fewest || (length <= 1 && heads >= rule.fewest);
    if (shape[0] != first.shape[0] || !pays) return false;
  }
  for (const int32_t* dtype = rule.dtypes; *dtype != 0; ++dtype) {
    if (*dtype == first.dtype) return true;
  }
  return false;
}

bool is_of_family(int64_t instance, const char* family) {
  const Dispatcher* found = nullptr;
  return find_dispatcher(family, Device(), &found) == TILEKILN_OK && found->at(instance).row != nullptr;
}

bool has_measured(const char* name, const void* args, size_t bytes, size_t instance_offset) {
  if (__builtin_expect(tuned_calls.load(std::memory_order_acquire) == nullptr, 1)) return false;
  const std::unique_ptr<char[]> own(new char[bytes]);
  if (!take_tuned(name, args, own.get(), bytes)) return false;
  int64_t instance;
  memcpy(&instance, own.get() + instance_offset, sizeof(instance));
  return instance >= 0;
}

}  // namespace tilekiln
