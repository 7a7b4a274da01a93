// SPDX-License-Identifier: MIT
// The kernels of a registry, in order and by what they answer (chooser.h).
#pragma once
#include <memory>
#include <new>
#include <unordered_map>

#include "tilekiln/choice/chooser.h"
#include "tilekiln/choice/match.hpp"

namespace tilekiln::dispatcher {

enum class Priority : int { low = 0, normal = 1, high = 2 };

// A kernel of a registry. Instance has key, choice, origin, answers_by_key and supports, as dispatcher/instance.hpp says them.
template <class Instance>
struct EntryOf {
  std::shared_ptr<const Instance> instance;
  std::string id;
  Priority priority = Priority::normal;
  int rank = 0;
};

template <class Instance>
class IndexOf {
 public:
  using Entry = EntryOf<Instance>;
  explicit IndexOf(std::vector<Entry> entries) : entries_(std::move(entries)) {
    all_.terms = terms();
    try {
      for (const Entry& entry : entries_) add(entry);
      if (tilekiln_chooser_finish(&all_, most_fields) == 0) throw std::bad_alloc();
    } catch (...) {
      tilekiln_chooser_clear(&all_);
      throw;
    }
  }
  ~IndexOf() { tilekiln_chooser_clear(&all_); }
  IndexOf(const IndexOf&) = delete;
  IndexOf& operator=(const IndexOf&) = delete;

  const std::vector<Entry>& entries() const { return entries_; }
  // Every field that a key of a family says.
  Fields known(Value family) const {
    const auto found = known_.find(family.bits());
    return found == known_.end() ? Fields() : found->second;
  }

  // The best of those that answer, and are of an origin where one is given; null where there is none.
  const Entry* select(const Problem& problem, const std::string* origin = nullptr) const {
    struct Asking {
      const IndexOf& index;
      const Problem& problem;
    } asking = {*this, problem};
    const Problem::Asked asked(problem);
    const int32_t found = tilekiln_chooser_choose(
        &all_, &asked.all, origin == nullptr ? TILEKILN_NOTHING : Value::word(*origin).bits(),
        [](void* context, int32_t kernel) -> int {
          const Asking& of = *static_cast<const Asking*>(context);
          return of.index.entries_[static_cast<size_t>(kernel)].instance->supports(of.problem);
        },
        &asking);
    return found < 0 ? nullptr : &entries_[static_cast<size_t>(found)];
  }

 private:
  void add(const Entry& entry) {
    const Key& key = entry.instance->key();
    Kernel kernel(key, entry.instance->choice());
    kernel.all().origin = Value::word(entry.instance->origin()).bits();
    kernel.all().priority = static_cast<int32_t>(entry.priority);
    kernel.all().rank = entry.rank;
    kernel.all().asks = entry.instance->answers_by_key() ? 0 : 1;
    if (tilekiln_chooser_add(&all_, &kernel.all()) == 0) throw std::bad_alloc();
    for (const auto& [field, value] : key.signature) known_[Value(key.family).bits()].set(field.number());
  }

  std::vector<Entry> entries_;
  std::unordered_map<int64_t, Fields> known_;  // by the family
  tilekiln_chooser all_ = {};
};

}  // namespace tilekiln::dispatcher
