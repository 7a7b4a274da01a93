// SPDX-License-Identifier: MIT
// Registries of the C ABI (tilekiln/registry.h): the index of kernels (tilekiln/choice) that are described in words.
#include "tilekiln/registry.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>

#include "kernels/runtime/status.h"
#include "tilekiln/choice/index.hpp"

namespace tilekiln {
namespace {

using dispatcher::Choice;
using dispatcher::Field;
using dispatcher::Key;
using dispatcher::Problem;
using dispatcher::Value;

constexpr size_t most_told = 5;

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

// A kernel that somebody else runs.
class Described {
 public:
  Described(int64_t at, const tilekiln_kernel_description& of)
      : number(at), origin_(text_of(of.origin)), accepts_(of.accepts), context_(of.context) {
    key_.family = of.family;
    key_.target = text_of(of.target);
    for (int32_t i = 0; i < of.signature_count; ++i)
      key_.signature.set(of.signature[i].field, text_of(of.signature[i].value));
    for (int32_t i = 0; i < of.algorithm_count; ++i)
      key_.algorithm.set(of.algorithm[i].field, text_of(of.algorithm[i].value));
    for (int32_t i = 0; i < of.fit_count; ++i)
      choice_.fit.push_back({of.fit[i].field, "", Value(text_of(of.fit[i].value)).number()});
    for (int32_t i = 0; i < of.hold_count; ++i) choice_.holds.emplace_back(of.holds[i]);
    choice_.needs = dispatcher::SizeRule(text_of(of.needs));
    choice_.best = dispatcher::SizeRule(text_of(of.best));
    choice_.order = of.order;
    dispatcher::Kernel(key_, choice_);  // throws what is wrong with the fit
  }
  const Key& key() const { return key_; }
  const Choice& choice() const { return choice_; }
  bool answers_by_key() const { return accepts_ == nullptr; }
  std::string origin() const { return origin_; }
  std::string refusal(const Problem& problem) const {
    const std::string reason = dispatcher::mismatch(key_, choice_, problem);
    if (!reason.empty() || accepts_ == nullptr || accepts_(context_, number) != 0) return reason;
    return "it does not accept the problem";
  }
  bool supports(const Problem& problem) const { return refusal(problem).empty(); }

  const int64_t number;

 private:
  Key key_;
  Choice choice_;
  const std::string origin_;
  int32_t (*const accepts_)(void*, int64_t);
  void* const context_;
};

using Entry = dispatcher::EntryOf<Described>;
using Index = dispatcher::IndexOf<Described>;

// Adds the first reason why a kernel does not answer to those of this thread's error.
void add_refusal(const Described& kernel, const Problem& problem, const std::string& text) {
  dispatcher::Kernel all(kernel.key(), kernel.choice());
  const Problem::Asked asked(problem);
  const tilekiln_mismatch why =
      tilekiln_mismatch_of(&dispatcher::terms(), &all.all(), &asked.all, &dispatcher::names());
  Refusals& told = error_refusals();
  const auto word = [&](int64_t value) { return told.keep("%s", Value::of_bits(value).text().c_str()); };
  const auto field = [&](uint16_t number) { return Field::of(number).name().c_str(); };
  const bool axis = why.reason != TILEKILN_ANSWERS && why.reason <= TILEKILN_UNKNOWN_FIELD;
  tilekiln_refusal& refusal = told.add(axis                                 ? TILEKILN_REFUSED_AXIS
                                       : why.reason == TILEKILN_NEEDS_SIZES ? TILEKILN_REFUSED_NEEDS
                                                                            : TILEKILN_REFUSED_RULE);
  refusal.instance = kernel.number;
  if (axis) {
    refusal.axis = why.reason == TILEKILN_OTHER_FAMILY ? "family" : field(why.field);
    refusal.have = why.reason == TILEKILN_UNKNOWN_FIELD ? nullptr : word(why.have);
    refusal.want = word(why.want);
  } else if (why.reason == TILEKILN_NEEDS_SIZES) {
    refusal.have = told.keep("%s", kernel.choice().needs.text().c_str());
  } else if (why.reason == TILEKILN_ANSWERS) {
    refusal.rule = "accepts";
  } else {
    refusal.rule = field(why.rule);
    refusal.axis = field(why.field);
    if (why.reason != TILEKILN_VARYING_KEYS) {
      refusal.have = word(why.have);
      refusal.want = word(why.want);
    }
  }
  refusal.text = told.keep("kernel %lld: %s", static_cast<long long>(kernel.number), text.c_str());
}

tilekiln_status check_pairs(const char* name, const tilekiln_pair* pairs, int32_t count) {
  if (count < 0 || (count > 0 && pairs == nullptr))
    return fail_argument(name, "was %s of %d, must be a list of as many", pairs == nullptr ? "null" : "a list", count);
  for (int32_t i = 0; i < count; ++i)
    if (text_of(pairs[i].field).empty()) return fail_argument(name, "[%d]: has no field, must name one", i);
  return TILEKILN_OK;
}

tilekiln_status check_family(const char* family) {
  return text_of(family).empty() ? fail_argument("family", "was not given, must be the name of one") : TILEKILN_OK;
}

Problem problem_of(const char* family, const tilekiln_pair* pairs, int32_t count) {
  Problem problem{Value(family)};
  for (int32_t i = 0; i < count; ++i) problem.set(pairs[i].field, text_of(pairs[i].value));
  return problem;
}

// Runs `work`; what is wrong with its words is the caller's argument.
template <class Work>
tilekiln_status guarded(const Work& work) {
  try {
    return work();
  } catch (const std::logic_error& error) {
    return fail(TILEKILN_INVALID_ARGUMENT, "%s", error.what());
  } catch (...) {
    return fail_exception();
  }
}

}  // namespace
}  // namespace tilekiln

struct tilekiln_registry {
  std::deque<tilekiln::Entry> entries;  // by number; without an instance where it was taken away
  int64_t count = 0;
  mutable std::mutex mutex;
  mutable std::shared_ptr<const tilekiln::Index> made;

  std::shared_ptr<const tilekiln::Index> index() const {
    const std::lock_guard lock(mutex);
    if (made == nullptr) {
      std::vector<tilekiln::Entry> all;
      for (const tilekiln::Entry& entry : entries)
        if (entry.instance != nullptr) all.push_back(entry);
      made = std::make_shared<const tilekiln::Index>(std::move(all));
    }
    return made;
  }
  // Calls `work` with the entry of a kernel.
  template <class Work>
  tilekiln_status with(int64_t kernel, const Work& work) {
    const std::lock_guard lock(mutex);
    const auto at = static_cast<size_t>(kernel);
    if (kernel < 0 || at >= entries.size() || entries[at].instance == nullptr)
      return tilekiln::fail_argument("kernel", "was %lld, must be the number of one that the registry holds",
                                     static_cast<long long>(kernel));
    work(entries[at]);
    return TILEKILN_OK;
  }
};

using namespace tilekiln;

namespace {

tilekiln_status check_registry(const void* registry) {
  return registry == nullptr ? fail_argument("registry", "was null, must be of tilekiln_registry_create") : TILEKILN_OK;
}

// The kernels of a problem's family that differ least, with the reasons, as this thread's error.
tilekiln_status fail_choice(const Index& index, const Problem& problem) {
  std::vector<std::pair<int, const Entry*>> others;
  for (const Entry& entry : index.entries()) {
    const Described& one = *entry.instance;
    if (Value(one.key().family) != problem.family()) continue;
    others.emplace_back(dispatcher::differences(one.key(), one.choice(), problem), &entry);
  }
  std::stable_sort(others.begin(), others.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Text text(error_buffer(), error_capacity);
  text.add("no kernel of the registry answers %s", problem.to_string().c_str());
  size_t told = 0;
  for (const auto& [differ, entry] : others) {
    const std::string reason = entry->instance->refusal(problem);
    if (reason.empty() || told++ >= most_told) continue;
    add_refusal(*entry->instance, problem, reason);
    text.add("\n  refused: %s", error_refusals().last().text);
  }
  if (told > most_told) text.add("\n  and %zu others", told - most_told);
  return TILEKILN_NO_KERNEL;
}

}  // namespace

extern "C" {

tilekiln_status tilekiln_registry_create(tilekiln_registry** registry) {
  if (registry == nullptr) return fail_argument("registry", "was null, must be where the registry is to be put");
  return guarded([&] {
    *registry = new tilekiln_registry();
    return tilekiln_status{TILEKILN_OK};
  });
}

void tilekiln_registry_destroy(tilekiln_registry* registry) { delete registry; }

tilekiln_status tilekiln_registry_add(tilekiln_registry* registry, const tilekiln_kernel_description* description,
                                      int64_t* kernel) {
  TILEKILN_TRY(check_registry(registry));
  if (description == nullptr || description->size != sizeof(*description))
    return fail_argument("description", "size was %zu, must be %zu, sizeof(tilekiln_kernel_description)",
                         description == nullptr ? size_t{0} : description->size, sizeof(*description));
  const tilekiln_kernel_description& of = *description;
  TILEKILN_TRY(check_family(of.family));
  TILEKILN_TRY(check_pairs("signature", of.signature, of.signature_count));
  TILEKILN_TRY(check_pairs("algorithm", of.algorithm, of.algorithm_count));
  TILEKILN_TRY(check_pairs("fit", of.fit, of.fit_count));
  if (of.hold_count < 0 || (of.hold_count > 0 && of.holds == nullptr))
    return fail_argument("holds", "was %s of %d, must be a list of as many", of.holds == nullptr ? "null" : "a list",
                         of.hold_count);
  for (int32_t i = 0; i < of.hold_count; ++i)
    if (text_of(of.holds[i]).empty()) return fail_argument("holds", "[%d]: has no field, must name one", i);
  return guarded([&] {
    const std::lock_guard lock(registry->mutex);
    const auto number = static_cast<int64_t>(registry->entries.size());
    Entry entry;
    entry.instance = std::make_shared<Described>(number, of);
    entry.priority = static_cast<dispatcher::Priority>(of.priority);
    entry.rank = of.rank;
    registry->entries.push_back(std::move(entry));
    registry->made.reset();
    ++registry->count;
    if (kernel != nullptr) *kernel = number;
    return tilekiln_status{TILEKILN_OK};
  });
}

tilekiln_status tilekiln_registry_remove(tilekiln_registry* registry, int64_t kernel) {
  TILEKILN_TRY(check_registry(registry));
  return registry->with(kernel, [&](Entry& entry) {
    entry.instance.reset();
    registry->made.reset();
    --registry->count;
  });
}

tilekiln_status tilekiln_registry_set_rank(tilekiln_registry* registry, int64_t kernel, int32_t rank) {
  TILEKILN_TRY(check_registry(registry));
  return registry->with(kernel, [&](Entry& entry) {
    entry.rank = rank;
    registry->made.reset();
  });
}

tilekiln_status tilekiln_registry_set_priority(tilekiln_registry* registry, int64_t kernel, int32_t priority) {
  TILEKILN_TRY(check_registry(registry));
  return registry->with(kernel, [&](Entry& entry) {
    entry.priority = static_cast<dispatcher::Priority>(priority);
    registry->made.reset();
  });
}

int64_t tilekiln_registry_count(const tilekiln_registry* registry) {
  if (registry == nullptr) return 0;
  const std::lock_guard lock(registry->mutex);
  return registry->count;
}

tilekiln_status tilekiln_choose(const tilekiln_registry* registry, const char* family, const tilekiln_pair* problem,
                                int32_t count, const char* origin, int64_t* kernel) {
  if (kernel == nullptr) return fail_argument("kernel", "was null, must be where the number is to be put");
  *kernel = -1;
  TILEKILN_TRY(check_registry(registry));
  TILEKILN_TRY(check_family(family));
  TILEKILN_TRY(check_pairs("problem", problem, count));
  return guarded([&] {
    const std::shared_ptr<const Index> index = registry->index();
    const Problem asked = problem_of(family, problem, count);
    const std::string from = text_of(origin);
    const Entry* const found = index->select(asked, origin == nullptr ? nullptr : &from);
    if (found == nullptr) return fail_choice(*index, asked);
    *kernel = found->instance->number;
    return tilekiln_status{TILEKILN_OK};
  });
}

tilekiln_status tilekiln_registry_check(const tilekiln_registry* registry, int64_t kernel, const char* family,
                                        const tilekiln_pair* problem, int32_t count) {
  TILEKILN_TRY(check_registry(registry));
  TILEKILN_TRY(check_family(family));
  TILEKILN_TRY(check_pairs("problem", problem, count));
  return guarded([&] {
    std::shared_ptr<const Described> instance;
    auto* const all = const_cast<tilekiln_registry*>(registry);
    TILEKILN_TRY(all->with(kernel, [&](const Entry& entry) { instance = entry.instance; }));
    const Problem asked = problem_of(family, problem, count);
    const std::string reason = instance->refusal(asked);
    if (reason.empty()) return tilekiln_status{TILEKILN_OK};
    Text text(error_buffer(), error_capacity);
    add_refusal(*instance, asked, reason);
    text.add("%s", error_refusals().last().text);
    return tilekiln_status{TILEKILN_NO_KERNEL};
  });
}

}  // extern "C"
