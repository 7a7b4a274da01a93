// The kernels of a registry, in order and by what they answer (chooser.h).
#pragma once
#include <map>
#include <new>
#include <unordered_map>

#include "tilekiln/dispatcher/chooser.h"
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
  struct Order {
    int priority, rank;
    std::vector<int64_t> numbers;
    std::string name;
    size_t at;
    bool operator<(const Order& other) const {
      if (priority != other.priority) return priority < other.priority;
      if (rank != other.rank) return rank < other.rank;
      return numbers != other.numbers ? numbers < other.numbers : name < other.name;
    }
  };
  std::vector<Order> orders;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Instance& one = *entries[i].instance;
    Order order = {-static_cast<int>(entries[i].priority), entries[i].rank, {}, one.name(), i};
    for (const Field field : {field::hdim_q, field::hdim_v})
      order.numbers.push_back(one.key().signature[field].number());
    std::map<std::string, int64_t>
        by_name;  // however the key was said: a registry that is read back has the same order
    for (const auto& [field, value] : one.key().algorithm)
      if (value.is_number()) by_name.emplace(field.name(), value.number());
    for (const auto& [name, number] : by_name) order.numbers.push_back(number);
    orders.push_back(std::move(order));
  }
  std::sort(orders.begin(), orders.end());
  std::vector<Entry> sorted;
  for (const Order& order : orders) sorted.push_back(std::move(entries[order.at]));
  entries = std::move(sorted);
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
    for (const auto& [field, value] : key.signature) known_[Value(key.family).bits()].add(field);
  }

  std::vector<Entry> entries_;
  std::unordered_map<int64_t, Fields> known_;  // by the family
  tilekiln_chooser all_ = {};
};

}  // namespace tilekiln::dispatcher
