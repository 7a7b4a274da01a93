// The kernels of a registry by what they answer, so that a choice among ten thousand looks at a handful.
//
// Kernels whose keys say the same fields are of one shape. Fields that must be equal are hashed; of those alike in them, the least
// capacity comes first.
#pragma once
#include <map>
#include <unordered_map>

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
    for (const Entry& entry : entries_) add(entry);
    for (auto& [family, shapes] : families_) {
      for (Shape& shape : shapes) {
        for (auto& [hash, bucket] : shape.buckets) {
          std::stable_sort(bucket.begin(), bucket.end(),
                           [](const Candidate& a, const Candidate& b) { return a.held < b.held; });
        }
      }
    }
  }

  const std::vector<Entry>& entries() const { return entries_; }
  // Every field that a key of a family says.
  Fields known(Value family) const {
    Fields fields;
    if (const auto found = families_.find(family.meaning()); found != families_.end())
      for (const Shape& shape : found->second) fields.add(shape.known);
    return fields;
  }

  // The best of those that answer, and that `takes` where it is given; null where there is none.
  const Entry* select(const Problem& problem, const std::function<bool(const Entry&)>* takes = nullptr) const {
    const auto family = families_.find(problem.family().meaning());
    if (family == families_.end()) return nullptr;
    const Candidate* best = nullptr;
    int64_t least = 0;
    for (const Shape& shape : family->second) {
      if (!problem.asked().within(shape.known)) continue;
      const auto bucket = shape.buckets.find(hash_of(shape, problem));
      if (bucket == shape.buckets.end()) continue;
      int64_t wants = 0;
      for (const Field field : shape.holds) wants += problem.number(field);
      for (const Candidate& candidate : bucket->second) {
        const int64_t waste = candidate.held - wants;
        if (best != nullptr && waste > least) break;
        if (!answers(shape, candidate, problem)) continue;
        if (takes != nullptr && !(*takes)(*candidate.entry)) continue;
        if (best != nullptr && waste == least && !before(candidate, *best, problem)) continue;
        best = &candidate;
        least = waste;
      }
    }
    return best == nullptr ? nullptr : best->entry;
  }

 private:
  static constexpr int most_held = 6;
  struct Candidate {
    const Entry* entry;
    const Instance* instance;
    const Choice* choice;
    int64_t held = 0;
    int64_t capacity[most_held] = {};
    std::vector<int64_t> equal;  // by Shape::equal
    Value target;
    bool pads = false;   // the algorithm asks something of the sizes
    bool plain = false;  // it asks nothing beyond its key
  };
  struct Shape {
    std::vector<Field> equal, holds;
    Fields known;
    std::unordered_map<uint64_t, std::vector<Candidate>> buckets;
  };

  static int64_t meaning(Field field, Value value) {
    return value.off() || value == field.usual() ? Value().meaning() : value.meaning();
  }
  static uint64_t mixed(uint64_t hash, int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
  }
  static uint64_t hash_of(const Shape& shape, const Problem& problem) {
    uint64_t hash = 0;
    for (const Field field : shape.equal) hash = mixed(hash, meaning(field, problem[field]));
    return hash;
  }

  void add(const Entry& entry) {
    const Key& key = entry.instance->key();
    Candidate candidate = {&entry, entry.instance.get(), &entry.instance->choice(), 0, {}, {}, {}, false, false};
    std::vector<Field> equal, holds;
    Fields known;
    for (const auto& [field, value] : key.signature) {
      known.add(field);
      if (value.empty()) continue;  // any value
      (candidate.choice->held(field) ? holds : equal).push_back(field);
    }
    if (holds.size() > most_held)
      throw std::length_error(entry.id + ": holds " + std::to_string(holds.size()) + " fields, must be at most 6");
    const auto by_number = [](Field a, Field b) { return a.number() < b.number(); };
    std::sort(equal.begin(), equal.end(), by_number);
    std::sort(holds.begin(), holds.end(), by_number);
    uint64_t hash = 0;
    for (const Field field : equal) {
      candidate.equal.push_back(meaning(field, key.signature[field]));
      hash = mixed(hash, candidate.equal.back());
    }
    for (size_t i = 0; i < holds.size(); ++i) {
      candidate.capacity[i] = key.signature[holds[i]].number();
      candidate.held += candidate.capacity[i];
    }
    candidate.target = Value(key.target);
    for (const tables::Limit& limit : tables::limits) candidate.pads |= key.algorithm.has(limit.limit);
    for (const tables::Pad& rule : tables::pads) candidate.pads |= key.algorithm.has(rule.pad);
    candidate.plain = entry.instance->answers_by_key();
    std::vector<Shape>& shapes = families_[Value(key.family).meaning()];
    Shape* shape = nullptr;
    for (Shape& one : shapes)
      if (one.equal == equal && one.holds == holds && one.known == known) shape = &one;
    if (shape == nullptr) shape = &shapes.emplace_back(Shape{equal, holds, known, {}});
    shape->buckets[hash].push_back(std::move(candidate));
  }

  static bool answers(const Shape& shape, const Candidate& candidate, const Problem& problem) {
    for (size_t i = 0; i < shape.holds.size(); ++i)
      if (problem.number(shape.holds[i]) > candidate.capacity[i]) return false;
    for (size_t i = 0; i < shape.equal.size(); ++i)
      if (meaning(shape.equal[i], problem[shape.equal[i]]) != candidate.equal[i]) return false;
    const Value target = problem[field::target];
    if (!target.empty() && !candidate.target.empty() && candidate.target != target) return false;
    if (!candidate.choice->needs.holds(problem)) return false;
    if (!candidate.plain) return candidate.instance->supports(problem);
    return !candidate.pads || unfit(candidate.instance->key().algorithm, problem).empty();
  }

  // Of two that waste alike; a tie leaves the first of the registry's order.
  static bool before(const Candidate& a, const Candidate& b, const Problem& problem) {
    if (a.entry->priority != b.entry->priority) return a.entry->priority > b.entry->priority;
    if (a.choice != b.choice) {
      const Fitted first = fitted(*a.choice, problem), second = fitted(*b.choice, problem);
      if (first.preference != second.preference) return first.preference < second.preference;
      const int fits = tilekiln_fit_compare(&first.fit, &second.fit);
      if (fits != 0) return fits < 0;
    }
    if (a.choice->order != b.choice->order) return a.choice->order > b.choice->order;
    return a.entry->rank < b.entry->rank;
  }

  std::vector<Entry> entries_;
  std::unordered_map<int64_t, std::vector<Shape>> families_;
};

}  // namespace tilekiln::dispatcher
