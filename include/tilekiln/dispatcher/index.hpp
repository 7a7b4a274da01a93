// SPDX-License-Identifier: MIT
// The kernels of a registry, in order and by what they answer (chooser.h).
#pragma once
#include <map>
#include <new>
#include <tuple>
#include <unordered_map>

#include "tilekiln/choice/chooser.h"
#include "tilekiln/dispatcher/instance.hpp"

namespace tilekiln::dispatcher {

enum class Priority : int { low = 0, normal = 1, high = 2 };

struct Entry {
  std::shared_ptr<const Instance> instance;
  std::string id;
  Priority priority = Priority::normal;
  int rank = 0;
};

// Priority, the highest first; then rank, capacity, numbers of the algorithm and name.
inline void sort_entries(std::vector<Entry>& entries) {
  std::map<std::tuple<int, int, std::vector<int64_t>, std::string, size_t>, Entry>
      sorted;  // compiles faster than a sort
  for (Entry& entry : entries) {
    const Key& key = entry.instance->key();
    std::vector<int64_t> numbers = {key.signature[field::hdim_q].number(), key.signature[field::hdim_v].number()};
    std::map<std::string, int64_t> by_name;  // a registry that is read back has the same order, however keys were said
    for (const auto& [field, value] : key.algorithm)
      if (value.is_number()) by_name.emplace(field.name(), value.number());
    for (const auto& [name, number] : by_name) numbers.push_back(number);
    const int priority = -static_cast<int>(entry.priority), rank = entry.rank;
    sorted.try_emplace({priority, rank, std::move(numbers), entry.instance->name(), sorted.size()}, std::move(entry));
  }
  entries.clear();
  for (auto& [order, entry] : sorted) entries.push_back(std::move(entry));
}

class Index {
 public:
  explicit Index(std::vector<Entry> entries) : entries_(std::move(entries)) {
    all_.terms = terms();
    try {
      for (const Entry& entry : entries_) add(entry);
      if (tilekiln_chooser_finish(&all_, most_fields) == 0) throw std::bad_alloc();
    } catch (...) {
      tilekiln_chooser_clear(&all_);
      throw;
    }
  }
  ~Index() { tilekiln_chooser_clear(&all_); }
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  const std::vector<Entry>& entries() const { return entries_; }
  // Every field that a key of a family says.
  Fields known(Value family) const {
    const auto found = known_.find(family.bits());
    return found == known_.end() ? Fields() : found->second;
  }

  // The best of those that answer, and are of an origin where one is given; null where there is none.
  const Entry* select(const Problem& problem, const std::string* origin = nullptr) const {
    struct Asking {
      const Index& index;
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
