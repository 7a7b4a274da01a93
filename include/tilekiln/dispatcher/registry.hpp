// SPDX-License-Identifier: MIT
// A registry: the kernels that a dispatcher may choose from. Any number of threads may use one.
#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>

#include "tilekiln/choice/index.hpp"
#include "tilekiln/dispatcher/instance.hpp"

namespace tilekiln::dispatcher {

using Entry = EntryOf<Instance>;
using Index = IndexOf<Instance>;

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

class Registry {
 public:
  using Pointer = std::shared_ptr<const Instance>;
  using Predicate = std::function<bool(const Instance&)>;

  explicit Registry(std::string name = "default") : name_(std::move(name)) {}
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;
  // Writes the file of enable_auto_export, where it was asked for the end.
  ~Registry() { write_export(false); }

  // The registry of the process, and others by name, made at their first use.
  static Registry& instance() { return named("default"); }
  static Registry& named(const std::string& name) {
    static std::mutex mutex;
    static std::map<std::string, Registry> all;
    const std::lock_guard lock(mutex);
    return all.try_emplace(name, name).first->second;
  }

  const std::string& name() const { return name_; }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
    changed();
  }

  // False for null, and where an instance of the same id has the same or a higher priority. Throws std::logic_error for another key of
  // the same id.
  bool add(Pointer instance, Priority priority = Priority::normal) {
    if (instance == nullptr) return false;
    {
      const std::lock_guard lock(mutex_);
      if (!put(std::move(instance), priority, false)) return false;
      changed();
    }
    write_export(true);
    return true;
  }
  // Many at once: one change. How many were taken.
  size_t add_all(const std::vector<Pointer>& instances, Priority priority = Priority::normal) {
    size_t taken = 0;
    {
      const std::lock_guard lock(mutex_);
      for (const Pointer& one : instances) taken += one != nullptr && put(one, priority, false);
      changed();
    }
    write_export(true);
    return taken;
  }
  // Takes all of another with their ranks, also where ours has the same id with the same or a lower priority. How many were taken.
  size_t merge_from(const Registry& other) {
    if (&other == this) return 0;
    const std::vector<Entry> theirs = other.entries();
    size_t taken = 0;
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : theirs) taken += put(entry.instance, entry.priority, true, entry.rank);
    changed();
    return taken;
  }

  // Null where there is none.
  Pointer lookup(const std::string& id) const {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    return found == entries_.end() ? nullptr : found->second.instance;
  }
  Pointer lookup(const Key& key) const { return lookup(key.id()); }

  // Entries by priority, the highest first, then rank, capacity, numbers of the algorithm and name.
  std::vector<Entry> entries() const {
    const std::lock_guard lock(mutex_);
    return in_order();
  }
  std::vector<Pointer> get_all() const {
    return filter([](const Instance&) { return true; });
  }
  std::vector<Pointer> filter(const Predicate& keeps) const {
    std::vector<Pointer> kept;
    for (const Entry& entry : entries())
      if (keeps(*entry.instance)) kept.push_back(entry.instance);
    return kept;
  }
  // Removes the kernels of other targets; those of none stay. How many were removed.
  size_t filter_by_target(const std::string& target) {
    return erase([&](const Instance& one) { return !one.key().target.empty() && one.key().target != target; });
  }
  // Removes the kernels of other receipts; those of none stay. How many were removed.
  size_t filter_by_receipt(const std::string& receipt) {
    return erase([&](const Instance& one) { return !one.key().receipt.empty() && one.key().receipt != receipt; });
  }
  std::vector<std::string> available_receipts() const {
    std::set<std::string> names;
    const std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : entries_)
      if (!entry.instance->key().receipt.empty()) names.insert(entry.instance->key().receipt);
    return {names.begin(), names.end()};
  }
  // Puts a measured rank in place of the instance's own, lower first. False where there is no such id.
  bool set_rank(const std::string& id, int rank) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return false;
    found->second.rank = rank;
    changed();
    return true;
  }

  // The index by which kernels are chosen: a snapshot, however the registry changes later.
  std::shared_ptr<const Index> index() const {
    if (auto made = std::atomic_load(&index_)) return made;
    const std::lock_guard lock(mutex_);
    if (auto made = std::atomic_load(&index_)) return made;
    std::shared_ptr<const Index> made = std::make_shared<Index>(in_order());
    std::atomic_store(&index_, made);
    return made;
  }

  // Writes the JSON to a file after each registration, or once at the end of the registry's life. statistics and timestamp are
  // those of to_json.
  void enable_auto_export(std::string path, bool statistics = true, bool each_registration = true,
                          bool timestamp = false) {
    const std::lock_guard lock(mutex_);
    export_ = std::make_shared<Export>(Export{std::move(path), statistics, each_registration, timestamp});
  }
  void disable_auto_export() {
    const std::lock_guard lock(mutex_);
    export_.reset();
  }

  // registry_json.hpp
  std::string to_json(bool statistics = true, bool timestamp = false) const;
  // False where the file cannot be written. It is written whole or not at all.
  bool to_file(const std::string& path, bool statistics = true, bool timestamp = false) const;

 private:
  struct Export {
    std::string path;
    bool statistics, each, timestamp;
  };

  std::vector<Entry> in_order() const {
    std::vector<Entry> all;
    for (const auto& [id, entry] : entries_) all.push_back(entry);
    sort_entries(all);
    return all;
  }
  bool put(Pointer instance, Priority priority, bool equal_replaces, std::optional<int> rank = std::nullopt) {
    const std::string id = instance->key().id();
    const auto [at, added] = entries_.try_emplace(id);
    if (!added) {
      if (!(at->second.instance->key() == instance->key()))
        throw std::logic_error("two kernels have the id " + id + ": " + at->second.instance->name() + " and " +
                               instance->name());
      if (equal_replaces ? priority < at->second.priority : priority <= at->second.priority) return false;
    }
    Entry& entry = at->second;
    entry.rank = rank.value_or(instance->choice().rank);
    entry.id = id;
    entry.priority = priority;
    entry.instance = std::move(instance);
    return true;
  }
  size_t erase(const Predicate& goes) {
    const std::lock_guard lock(mutex_);
    size_t removed = 0;
    for (auto at = entries_.begin(); at != entries_.end();) {
      const bool gone = goes(*at->second.instance);
      removed += gone;
      at = gone ? entries_.erase(at) : std::next(at);
    }
    changed();
    return removed;
  }
  void changed() { std::atomic_store(&index_, std::shared_ptr<const Index>()); }
  void write_export(bool each) const {
    std::shared_ptr<const Export> to;
    {
      const std::lock_guard lock(mutex_);
      to = export_;
    }
    if (to && to->each == each) to_file(to->path, to->statistics, to->timestamp);
  }

  const std::string name_;
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  mutable std::shared_ptr<const Index> index_;
  std::shared_ptr<const Export> export_;
};

}  // namespace tilekiln::dispatcher
