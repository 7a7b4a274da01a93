// SPDX-License-Identifier: MIT
#include "kernels/runtime/explain.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/runtime/backend.h"
#include "kernels/runtime/log.h"
#include "kernels/runtime/signatures.h"

namespace tilekiln {
namespace {

// Values of an axis: what a row has and a problem wants.
struct Difference {
  const Axis& axis;
  uint64_t have, want;
  const char* asked() const { return axis.asked == nullptr ? nullptr : axis.asked[want]; }
};

// " target=cuda-sm90a": the best of the library's targets that a device has, or all for such devices. A build without it is for the CPU.
void add_targets(Text& text, const Dispatcher& dispatcher) {
  const Machine& machine = dispatcher.machine();
  const Table& table = dispatcher.table();
  if (machine.device().type == Device().type) return;
  const char* separator = " target=";
  for (uint32_t i = 0; i < table.target_count; ++i) {
    const Target& target = table.targets[i];
    if (machine.best() == nullptr ? !machine.use(target).same_device : machine.best() != &target) continue;
    text.add("%s%s", separator, target.name);
    separator = ",";
  }
}

void add_build(Refusals& refusals, const Dispatcher& dispatcher, const Query& query) {
  const Family& family = dispatcher.family();
  Legal legal(dispatcher, query);
  while (const int64_t* values = legal.next()) {
    if (forbidding_rule(family, query.codes, values) != nullptr) continue;
    const ReceiptInfo* receipt = listing_receipt(family, dispatcher.table().receipt, query.codes, values);
    if (receipt == nullptr) continue;
    tilekiln_refusal& refusal = refusals.add(TILEKILN_REFUSED_NOT_BUILT);
    refusal.build = refusals.keep_written([&](Text& text) {
      text.add("scons receipt=%s", receipt->name);
      add_targets(text, dispatcher);
      text.add(" where='");
      add_selection(text, family, query.codes, values);
      text.add("'");
    });
    refusal.text = refusals.keep("this builds it: %s", refusal.build);
    return;
  }
  refusals.add(TILEKILN_REFUSED_NOT_LISTED).text = "no receipt lists it: add it to one in receipts/ and build that";
}

// Gives each axis in which a row cannot answer the problem to `take(Difference)`, and counts them.
template <class Take>
int differences(const Dispatcher& dispatcher, const Query& query, const Row& row, const Take& take) {
  const Family& family = dispatcher.family();
  int count = 0, at = 0;
  for (uint32_t i = 0; i < family.axis_count; ++i) {
    const Axis& axis = family.axes[i];
    uint64_t have, want;
    if (axis.kind == integer) {
      have = static_cast<uint64_t>(dispatcher.integer(row, at));
      want = static_cast<uint64_t>(query.wants[at++]);
    } else {
      have = code_of(axis, row.codes);
      want = code_of(axis, query.codes);
    }
    if (axis.kind == integer && !axis.equal ? have >= want : have == want) continue;
    take(Difference{axis, have, want});
    ++count;
  }
  return count;
}

int count_differences(const Dispatcher& dispatcher, const Query& query, const Row& row) {
  return differences(dispatcher, query, row, [](const Difference&) {});
}

void add_differences(Text& text, const Dispatcher& dispatcher, const Query& query, const Row& row) {
  const char* separator = "";
  differences(dispatcher, query, row, [&](const Difference& one) {
    text.add("%s%s=", separator, one.axis.name);
    add_value(text, one.axis, one.have);
    text.add(" (problem: ");
    add_value(text, one.axis, one.want);
    if (one.asked() != nullptr) text.add(", by %s", one.asked());
    text.add(")");
    separator = ", ";
  });
}

struct Near {
  const Row* row = nullptr;
  int64_t instance = -1;
  int different = 0;
  int64_t waste = 0;
  int order = 0;
  bool before(const Near& other) const {
    if (row == nullptr || other.row == nullptr) return row != nullptr;
    if (different != other.different) return different < other.different;
    if (waste != other.waste) return waste < other.waste;
    return order != other.order ? order > other.order : instance < other.instance;
  }
};
constexpr int near_count = 3;

// A reason for each value in which an instance differs, of which the first has the line.
void add_near(Refusals& refusals, const Dispatcher& dispatcher, const Query& query, const Near& near) {
  const char* const needs = dispatcher.how(*near.row).needs.text;
  const char* line = refusals.keep_written([&](Text& text) {
    text.add("nearest: ");
    add_name(text, dispatcher.table(), near.instance);
    text.add(near.different == 0 ? " needs " : " differs in ");
    if (near.different == 0) {
      text.add("%s", needs);
    } else {
      add_differences(text, dispatcher, query, *near.row);
    }
  });
  if (near.different == 0) {
    tilekiln_refusal& refusal = refusals.add(TILEKILN_REFUSED_NEEDS);
    refusal.instance = near.instance;
    refusal.have = needs;
    refusal.text = line;
    return;
  }
  differences(dispatcher, query, *near.row, [&](const Difference& one) {
    tilekiln_refusal& refusal = refusals.add(TILEKILN_REFUSED_AXIS);
    refusal.instance = near.instance;
    refusal.axis = one.axis.name;
    refusal.have = refusals.keep_written([&](Text& text) { add_value(text, one.axis, one.have); });
    refusal.want = refusals.keep_written([&](Text& text) { add_value(text, one.axis, one.want); });
    refusal.asked = one.asked();
    refusal.text = line;
    line = nullptr;
  });
}

void add_nearest(Refusals& refusals, const Dispatcher& dispatcher, const Query& query) {
  const Family& family = dispatcher.family();
  Near nearest[near_count];
  for (uint32_t g = 0; g < family.group_count; ++g) {
    // One line per group: other integers, targets and tiles of the same codes say nothing new.
    Near best;
    for (uint32_t ref = family.groups[g].begin; ref < family.groups[g].end; ++ref) {
      const Row& row = dispatcher.row(ref);
      if (!dispatcher.machine().use(row).usable) continue;
      const int64_t waste = dispatcher.waste(query, row);
      const Near candidate = {&row, dispatcher.instance(ref), count_differences(dispatcher, query, row),
                              waste < 0 ? -waste : waste, dispatcher.target(row)->order};
      if (candidate.before(best)) best = candidate;
    }
    for (Near& near : nearest) {
      if (best.row == nullptr || !best.before(near)) continue;
      const Near pushed = near;
      near = best;
      best = pushed;
    }
  }
  for (const Near& near : nearest) {
    if (near.row != nullptr) add_near(refusals, dispatcher, query, near);
  }
}

// Adds the reason why a machine lacks the target of a row, where its backend can say it.
void add_absence(Text& text, const Dispatcher& dispatcher, const Row& row) {
  const Target& target = *dispatcher.target(row);
  if (target.backend == nullptr || target.backend->absent == nullptr) return;
  text.add(" (%s)", target.backend->absent(dispatcher.machine().device(), target));
}

// The instances that would answer on another machine, or with another TILEKILN_ISA. False when there is none.
bool add_unusable(Refusals& refusals, const Dispatcher& dispatcher, const Query& query) {
  const Group* group = dispatcher.group(query.codes);
  if (group == nullptr) return false;
  bool any = false, told[256] = {};
  for (uint32_t ref = group->begin; ref < group->end; ++ref) {
    const Row& row = dispatcher.row(ref);
    const Refusal refusal = dispatcher.judge(query, ref, Choice());
    const bool lacks = refusal == Refusal::machine_lacks, refused = refusal == Refusal::system_refuses;
    if (told[row.target] || (!lacks && !refused && refusal != Refusal::isa_forbidden)) continue;
    tilekiln_refusal& reason = refusals.add(lacks || refused ? TILEKILN_REFUSED_MACHINE : TILEKILN_REFUSED_ISA);
    reason.instance = dispatcher.instance(ref);
    reason.have = dispatcher.machine().word(*dispatcher.target(row));
    if (refused) {
      reason.says = dispatcher.machine().use(row).refused;
    } else if (!lacks) {
      reason.want = refusals.keep("%s=%s", dispatcher.machine().limit_name(), dispatcher.machine().limit_word());
    }
    reason.text = refusals.keep_written([&](Text& text) {
      text.add("the library has it for %s, which ", reason.have);
      if (lacks) {
        text.add("this machine has not");
        add_absence(text, dispatcher, row);
      } else if (refused) {
        text.add("is refused to this process (%s)", reason.says);
      } else {
        text.add("%s forbids", reason.want);
      }
      text.add(": ");
      add_name(text, dispatcher.table(), reason.instance);
    });
    any = told[row.target] = true;
  }
  return any;
}

// The integers that a problem must have exactly.
void add_exact(Text& text, const Dispatcher& dispatcher, const Row& row) {
  const Family& family = dispatcher.family();
  text.add("it takes only");
  for (uint32_t i = 0, at = 0; i < family.axis_count; ++i) {
    if (family.axes[i].kind != integer) continue;
    const int64_t value = dispatcher.integer(row, static_cast<int>(at++));
    if (family.axes[i].equal) text.add(" %s=%lld", family.axes[i].name, static_cast<long long>(value));
  }
}

void add_rule(Refusals& refusals, const Rule& rule, const char* target) {
  tilekiln_refusal& refusal = refusals.add(TILEKILN_REFUSED_RULE);
  refusal.rule = rule.name;
  refusal.target = target;
  refusal.says = rule.says;
  refusal.text = target == nullptr ? refusals.keep("rule %s forbids it: %s", rule.name, rule.says)
                                   : refusals.keep("rule %s of target %s forbids it: %s", rule.name, target, rule.says);
}

// The rules by which the targets of this device forbid the problem, when every one has such a rule, so that no other build helps: a target's
// rule is no reason where another target beside it could answer.
bool add_target_rules(Refusals& refusals, const Dispatcher& dispatcher, const Query& query, const int64_t* values) {
  const Table& table = dispatcher.table();
  const Family& family = dispatcher.family();
  const auto at = &family - table.families;
  const auto rule_of = [&](const Target& target) {
    return target.refusals == nullptr ? nullptr : forbidding_rule(family, target.refusals[at], query.codes, values);
  };
  for (uint32_t i = 0; i < table.target_count; ++i) {
    const Target& target = table.targets[i];
    if (dispatcher.machine().use(target).same_device && rule_of(target) == nullptr) return false;
  }
  for (uint32_t i = 0; i < table.target_count; ++i) {
    const Target& target = table.targets[i];
    if (dispatcher.machine().use(target).same_device) add_rule(refusals, *rule_of(target), target.name);
  }
  return true;
}

// The rules by which faster targets that this machine may run have left a problem to the one that was chosen.
void add_rules_of_faster(Text& text, const Dispatcher& dispatcher, const Query& query, const Row& chosen) {
  const Table& table = dispatcher.table();
  const auto at = &dispatcher.family() - table.families;
  for (uint32_t i = 0; i < table.target_count; ++i) {
    const Target& target = table.targets[i];
    const bool faster = target.order > dispatcher.target(chosen)->order && dispatcher.machine().use(target).usable;
    if (!faster || target.refusals == nullptr) continue;
    const Rule* const rule = forbidding_rule(dispatcher.family(), target.refusals[at], query.codes, query.wants);
    if (rule != nullptr) text.add("\n  refused by target %s: %s", target.name, rule->says);
  }
}

// The sizes that an algorithm's tile covers, by which tiles are compared.
void add_fitted(Text& text, const Family& family) {
  for (uint32_t i = 0; i < family.fit_count; ++i)
    text.add("%s%s", i == 0 ? "" : " and ", family.sizes[family.fits[i].size]);
}

void add_refusal(Text& text, const Dispatcher& dispatcher, const Row& row, Refusal refusal) {
  switch (refusal) {
    case Refusal::other_codes: text.add("it answers another signature"); break;
    case Refusal::other_integers: add_exact(text, dispatcher, row); break;
    case Refusal::integers_small:
      text.add("its %s, ", dispatcher.family().integers.name);
      for (int i = 0; i < dispatcher.integer_count(); ++i)
        text.add("%s%lld", i == 0 ? "" : "x", static_cast<long long>(dispatcher.integer(row, i)));
      text.add(", are too small");
      break;
    case Refusal::sizes_unmet: text.add("it needs %s", dispatcher.how(row).needs.text); break;
    case Refusal::other_device: text.add("it runs on other devices than the arrays'"); break;
    case Refusal::not_built: text.add("its engine is not in this library"); break;
    case Refusal::machine_lacks:
      text.add("this machine has not %s", dispatcher.machine().word(*dispatcher.target(row)));
      add_absence(text, dispatcher, row);
      break;
    case Refusal::isa_forbidden:
      text.add("%s=%s forbids %s", dispatcher.machine().limit_name(), dispatcher.machine().limit_word(),
               dispatcher.machine().word(*dispatcher.target(row)));
      break;
    case Refusal::system_refuses:
      text.add("%s is refused to this process: %s", dispatcher.machine().word(*dispatcher.target(row)),
               dispatcher.machine().use(row).refused);
      break;
    case Refusal::integers_waste: text.add("another wastes less of the %s", dispatcher.family().integers.name); break;
    case Refusal::best_elsewhere:
      if (dispatcher.how(row).best.clause_count != 0) {
        text.add("it is best for %s", dispatcher.how(row).best.text);
      } else {
        text.add("another is made for these sizes");
      }
      break;
    case Refusal::tile_fit:
      text.add("another tile fits ");
      add_fitted(text, dispatcher.family());
      text.add(" better");
      break;
    case Refusal::slower_target: text.add("a faster target has it too"); break;
    case Refusal::rank: text.add("another ranks before it"); break;
    case Refusal::chosen: text.add("chosen"); break;
  }
}

// The refusals of a signature by their reason, for who reads one line for each call.
void add_refusals_by_reason(Text& text, const Dispatcher& dispatcher, const Query& query, const Choice& choice) {
  const Group* const group = dispatcher.group(query.codes);
  if (group == nullptr) return;
  std::vector<bool> told(group->end - group->begin);
  const auto refusal_of = [&](uint32_t ref) { return dispatcher.judge(query, ref, choice); };
  const auto alike = [&](uint32_t a, uint32_t b, Refusal refusal) {
    const bool by_target =
        refusal == Refusal::machine_lacks || refusal == Refusal::isa_forbidden || refusal == Refusal::system_refuses;
    return refusal_of(b) == refusal && (!by_target || dispatcher.row(a).target == dispatcher.row(b).target);
  };
  for (uint32_t first = group->begin; first < group->end; ++first) {
    const Refusal refusal = refusal_of(first);
    if (refusal == Refusal::chosen || refusal == Refusal::other_device || told[first - group->begin]) continue;
    int count = 0;
    for (uint32_t ref = first; ref < group->end; ++ref) {
      if (!alike(first, ref, refusal)) continue;
      told[ref - group->begin] = true;
      ++count;
    }
    text.add("\n  refused: %d: ", count);
    if (refusal == Refusal::integers_small) {
      text.add("their %s are too small", dispatcher.family().integers.name);
    } else {
      add_refusal(text, dispatcher, dispatcher.row(first), refusal);
    }
  }
}

// Has this choice for this problem been told before in this process?
bool told_before(const Dispatcher& dispatcher, const Query& query, const Choice& choice) {
  static std::mutex mutex;
  static std::set<std::tuple<const Family*, uint64_t, std::array<int64_t, max_integers>, int64_t>> told;
  std::array<int64_t, max_integers> wants;
  std::copy(std::begin(query.wants), std::end(query.wants), wants.begin());
  std::lock_guard lock(mutex);
  return !told.insert({&dispatcher.family(), query.codes, wants, choice.instance}).second;
}

}  // namespace

void describe(Text& text, const Dispatcher& dispatcher, const Query& query) {
  text.add("%s ", dispatcher.family().name);
  add_selection(text, dispatcher.family(), query.codes, query.wants);
}

namespace {

// No integers hold a problem.
void add_size(Refusals& refusals, const Dispatcher& dispatcher, const Query& query, const Legal& legal) {
  const Family& family = dispatcher.family();
  const Integers& integers = family.integers;
  tilekiln_refusal& refusal = refusals.add(TILEKILN_REFUSED_SIZE);
  refusal.axis = integers.name;
  refusal.have = refusals.keep_written([&](Text& text) { legal.add_all(text); });
  refusal.want = refusals.keep_written([&](Text& text) {
    for (int i = 0; i < dispatcher.integer_count(); ++i)
      text.add("%s%lld", i == 0 ? "" : "x", static_cast<long long>(query.wants[i]));
  });
  refusal.text = refusals.keep_written([&](Text& text) {
    text.add("no %s", integers.name);
    if (integers.by != 255) text.add(" of this %s", family.axes[integers.by].name);
    text.add(" hold %s; there are %s", refusal.want, refusal.have);
  });
}

void add_reasons(Refusals& refusals, const Dispatcher& dispatcher, const Query& query) {
  const Family& family = dispatcher.family();
  Legal legal(dispatcher, query);
  const int64_t* values = legal.next();
  if (values == nullptr) return add_size(refusals, dispatcher, query, legal);
  // A rule may forbid the tightest values and leave wider ones; the problem is illegal when all are forbidden.
  const Rule* rule = forbidding_rule(family, query.codes, values);
  for (; rule != nullptr && values != nullptr; values = legal.next()) {
    if (forbidding_rule(family, query.codes, values) == nullptr) rule = nullptr;
  }
  if (rule != nullptr) return add_rule(refusals, *rule, nullptr);
  if (add_target_rules(refusals, dispatcher, query, values)) return;
  const bool here = add_unusable(refusals, dispatcher, query);
  if (!here) add_nearest(refusals, dispatcher, query);
  // A device that lacks the target of a row gains nothing by another build of it; a CPU may, whose build is for itself.
  if (!here || dispatcher.machine().device().type == Device().type) add_build(refusals, dispatcher, query);
}

}  // namespace

void explain_missing(Text& text, Refusals& refusals, const Dispatcher& dispatcher, const Query& query) {
  refusals.clear();
  const char* const problem = refusals.keep_written([&](Text& of) { describe(of, dispatcher, query); });
  add_reasons(refusals, dispatcher, query);
  refusals.set_problem(problem);
  text.add("no kernel in library %s for %s", dispatcher.table().receipt, problem);
  for (const tilekiln_refusal& refusal : refusals) {
    if (refusal.text != nullptr) text.add("\n  %s", refusal.text);
  }
}

// Adds, for a problem of bf16, the arithmetic that the chosen target has for it here.
void add_arithmetic(Text& text, const Dispatcher& dispatcher, const Query& query, const Row& row) {
  const Target& target = *dispatcher.target(row);
  if (target.backend == nullptr || target.backend->says_of_bf16 == nullptr) return;
  char of[1024];
  Text problem(of, sizeof(of));
  describe(problem, dispatcher, query);
  const char* const says = strstr(of, "bf16") != nullptr ? target.backend->says_of_bf16(target) : "";
  if (*says != 0) text.add("\n  %s", says);
}

void explain_choice(Text& text, const Dispatcher& dispatcher, const Query& query, const Choice& choice) {
  describe(text, dispatcher, query);
  text.add("\n  chosen: ");
  add_name(text, dispatcher.table(), choice.instance);
  add_arithmetic(text, dispatcher, query, *choice.row);
  add_rules_of_faster(text, dispatcher, query, *choice.row);
  const Group* group = dispatcher.group(query.codes);
  if (group == nullptr) return;
  for (uint32_t ref = group->begin; ref < group->end; ++ref) {
    const Refusal refusal = dispatcher.judge(query, ref, choice);
    if (refusal == Refusal::chosen || refusal == Refusal::other_device) continue;
    text.add("\n  refused: ");
    add_name(text, dispatcher.table(), dispatcher.instance(ref));
    text.add(": ");
    add_refusal(text, dispatcher, dispatcher.row(ref), refusal);
  }
}

void explain_unfit(Text& text, const Dispatcher& dispatcher, const Query& query, const Choice& choice) {
  const Row& row = *choice.row;
  add_name(text, dispatcher.table(), choice.instance);
  text.add(" ");
  if (count_differences(dispatcher, query, row) != 0) {
    text.add("does not fit the problem, it has ");
    add_differences(text, dispatcher, query, row);
  } else if (dispatcher.refuse(query, row) == Refusal::sizes_unmet) {
    text.add("does not fit the problem, it needs %s", dispatcher.how(row).needs.text);
  } else if (!dispatcher.machine().use(row).same_device) {
    text.add("runs on %s, where the arrays are not", dispatcher.target(row)->name);
  } else if (!dispatcher.machine().use(row).supported) {
    text.add("needs %s, which this machine has not", dispatcher.machine().word(*dispatcher.target(row)));
    add_absence(text, dispatcher, row);
  } else if (const char* const refused = dispatcher.machine().use(row).refused) {
    text.add("needs %s, which is refused to this process: %s", dispatcher.machine().word(*dispatcher.target(row)),
             refused);
  } else if (!dispatcher.machine().use(row).usable) {
    text.add("needs %s, which %s=%s forbids", dispatcher.machine().word(*dispatcher.target(row)),
             dispatcher.machine().limit_name(), dispatcher.machine().limit_word());
  } else {
    text.add("has no engine in this library");
  }
}

void report(const Dispatcher& dispatcher, const Query& query, const Choice& choice) {
  char buffer[16384];
  Text text(buffer, sizeof(buffer) - 1);
  text.add("tilekiln: dispatch: ");
  if (choice.row != nullptr) {
    describe(text, dispatcher, query);
    text.add("\n  chosen: ");
    add_name(text, dispatcher.table(), choice.instance);
    if (!told_before(dispatcher, query, choice)) add_refusals_by_reason(text, dispatcher, query, choice);
  } else {
    Refusals refusals;
    explain_missing(text, refusals, dispatcher, query);
  }
  size_t length = strlen(buffer);
  buffer[length++] = '\n';
  write_log(buffer, length);
}

}  // namespace tilekiln
