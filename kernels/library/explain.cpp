#include "tilekiln/runtime/explain.h"

#include <stdio.h>
#include <string.h>

#include <mutex>
#include <set>
#include <tuple>
#include <vector>

namespace tilekiln {
namespace {

constexpr uint8_t boolean = 0, enumerated = 1, integer = 2;  // Axis::kind

uint64_t code_of(const Axis& axis, uint64_t signature) {
  return (signature >> axis.shift) & ((uint64_t(1) << axis.bits) - 1);
}

bool is(const Axis& axis, const char* name) { return strcmp(axis.name, name) == 0; }

void add_value(Text& text, const Axis& axis, uint64_t code) {
  if (axis.kind == enumerated && code < axis.value_count) {
    text.add("%s", axis.values[code]);
  } else if (axis.kind == boolean) {
    text.add("%s", code != 0 ? "yes" : "no");
  } else {
    text.add("%llu", static_cast<unsigned long long>(code));
  }
}

// `signature` with the head dims of `hdim_q` and `hdim_v`; for a problem they may be any, so they are passed beside it.
void add_selection(Text& text, const Family& family, uint64_t features, int hdim_q, int hdim_v) {
  for (uint32_t i = 0; i < family.axis_count; ++i) {
    const Axis& axis = family.axes[i];
    text.add("%s%s=", i == 0 ? "" : " ", axis.name);
    if (is(axis, "hdim_q") || is(axis, "hdim_v")) {
      text.add("%d", is(axis, "hdim_q") ? hdim_q : hdim_v);
    } else {
      add_value(text, axis, code_of(axis, features));
    }
  }
}

bool holds(const Family& family, const Clause& clause, uint64_t features, const HeadDims& dims) {
  for (uint32_t i = 0; i < clause.count; ++i) {
    const Condition& condition = clause.conditions[i];
    const Axis& axis = family.axes[condition.axis];
    bool met = false;
    if (axis.kind == integer) {
      const uint64_t value = is(axis, "hdim_q")   ? dims.hdim_q
                             : is(axis, "hdim_v") ? dims.hdim_v
                                                  : code_of(axis, features);
      for (uint32_t j = 0; j < condition.integer_count; ++j) met = met || condition.integers[j] == value;
    } else {
      met = (condition.allowed >> code_of(axis, features)) & 1;
    }
    if (!met) return false;
  }
  return true;
}

const Rule* forbidding_rule(const Family& family, uint64_t features, const HeadDims& dims) {
  for (uint32_t i = 0; i < family.rule_count; ++i) {
    if (holds(family, family.rules[i].when, features, dims)) return &family.rules[i];
  }
  return nullptr;
}

bool lists(const Family& family, const ReceiptInfo& receipt, uint64_t features, const HeadDims& dims) {
  for (uint32_t i = 0; i < receipt.clause_count; ++i) {
    if (holds(family, receipt.clauses[i], features, dims)) return true;
  }
  return false;
}

// The receipt that lists a signature: `own` if it does, else the first. Null when none does.
const ReceiptInfo* listing_receipt(const Family& family, const char* own, uint64_t features, const HeadDims& dims) {
  const ReceiptInfo* found = nullptr;
  for (uint32_t i = 0; i < family.receipt_count; ++i) {
    const ReceiptInfo& receipt = family.receipts[i];
    const bool mine = strcmp(receipt.name, own) == 0;
    if ((found == nullptr || mine) && lists(family, receipt, features, dims)) found = &receipt;
  }
  return found;
}

// The legal pairs of a dtype that hold a problem, by least waste, one after the other.
class Pairs {
 public:
  Pairs(const Family& family, const Query& query) : family_(family), query_(query) {
    for (uint32_t i = 0; i < family.axis_count; ++i) {
      if (is(family.axes[i], "dtype")) dtype_ = code_of(family.axes[i], query.features);
    }
  }
  uint64_t dtype() const { return dtype_; }
  // The next pair, null at the end.
  const HeadDims* next() {
    const HeadDims* best = nullptr;
    for (uint32_t i = 0; i < family_.head_dim_count; ++i) {
      const HeadDims& pair = family_.head_dims[i];
      if (pair.dtype != dtype_ || pair.hdim_q < query_.hdim_q || pair.hdim_v < query_.hdim_v) continue;
      if (last_ != nullptr && order(pair) <= order(*last_)) continue;
      if (best == nullptr || order(pair) < order(*best)) best = &pair;
    }
    return last_ = best;
  }

 private:
  static uint32_t order(const HeadDims& pair) { return (uint32_t(pair.hdim_q) + pair.hdim_v) << 16 | pair.hdim_q; }
  const Family& family_;
  const Query& query_;
  const HeadDims* last_ = nullptr;
  uint64_t dtype_ = 0;
};

void add_build_line(Text& text, const Dispatcher& dispatcher, const Query& query) {
  const Family& family = dispatcher.family();
  Pairs pairs(family, query);
  while (const HeadDims* pair = pairs.next()) {
    if (forbidding_rule(family, query.features, *pair) != nullptr) continue;
    const ReceiptInfo* receipt = listing_receipt(family, dispatcher.table().receipt, query.features, *pair);
    if (receipt == nullptr) continue;
    text.add("\n  this builds it: scons receipt=%s where='", receipt->name);
    add_selection(text, family, query.features, pair->hdim_q, pair->hdim_v);
    text.add("'");
    return;
  }
  text.add("\n  no receipt lists it: add it to one in receipts/ and build that");
}

// The axes in which a row cannot answer the problem. Counts them; writes them when `text` is given.
int differences(Text* text, const Dispatcher& dispatcher, const Query& query, const Row& row) {
  const Family& family = dispatcher.family();
  int count = 0;
  for (uint32_t i = 0; i < family.axis_count; ++i) {
    const Axis& axis = family.axes[i];
    const bool hdim = is(axis, "hdim_q") || is(axis, "hdim_v");
    const uint64_t have = code_of(axis, row.signature);
    const uint64_t want =
        !hdim ? code_of(axis, query.features) : static_cast<uint64_t>(is(axis, "hdim_q") ? query.hdim_q : query.hdim_v);
    if (hdim ? have >= want : have == want) continue;
    if (text != nullptr) {
      text->add("%s%s=", count == 0 ? "" : ", ", axis.name);
      add_value(*text, axis, have);
      text->add(" (problem: ");
      add_value(*text, axis, want);
      text->add(")");
    }
    ++count;
  }
  return count;
}

struct Near {
  const Row* row = nullptr;
  int64_t instance = -1;
  int different = 0, waste = 0, order = 0;
  bool before(const Near& other) const {
    if (row == nullptr || other.row == nullptr) return row != nullptr;
    if (different != other.different) return different < other.different;
    if (waste != other.waste) return waste < other.waste;
    return order != other.order ? order > other.order : instance < other.instance;
  }
};
constexpr int near_count = 3;

void add_nearest(Text& text, const Dispatcher& dispatcher, const Query& query) {
  const Family& family = dispatcher.family();
  Near nearest[near_count];
  for (uint32_t g = 0; g < family.group_count; ++g) {
    // One line per group: other head dims, targets and tiles of the same features say nothing new.
    Near best;
    for (uint32_t ref = family.groups[g].begin; ref < family.groups[g].end; ++ref) {
      const Row& row = dispatcher.row(ref);
      if (!dispatcher.usable(row)) continue;
      const int waste = dispatcher.hdim_q(row) + dispatcher.hdim_v(row) - query.hdim_q - query.hdim_v;
      const Near candidate = {&row, dispatcher.instance(ref), differences(nullptr, dispatcher, query, row),
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
    if (near.row == nullptr) continue;
    text.add("\n  nearest: %s differs in ", dispatcher.name(near.instance));
    differences(&text, dispatcher, query, *near.row);
  }
}

// The instances that would answer on another machine, or with another TILEKILN_ISA. False when there is none.
bool add_unusable(Text& text, const Dispatcher& dispatcher, const Query& query) {
  const Group* group = dispatcher.group(query.features);
  if (group == nullptr) return false;
  bool any = false, told[256] = {};
  for (uint32_t ref = group->begin; ref < group->end; ++ref) {
    const Row& row = dispatcher.row(ref);
    const Refusal refusal = dispatcher.judge(query, ref, Choice());
    if (told[row.target]) continue;
    const char* isa = dispatcher.target(row)->isa;
    if (refusal == Refusal::machine_lacks) {
      text.add("\n  the library has it for %s, which this machine has not: %s", isa,
               dispatcher.name(dispatcher.instance(ref)));
    } else if (refusal == Refusal::isa_forbidden) {
      text.add("\n  the library has it for %s, which TILEKILN_ISA=%s forbids: %s", isa, dispatcher.isa(),
               dispatcher.name(dispatcher.instance(ref)));
    } else {
      continue;
    }
    any = told[row.target] = true;
  }
  return any;
}

void add_head_dims(Text& text, const Family& family, uint64_t dtype) {
  const char* separator = "";
  for (uint32_t i = 0; i < family.head_dim_count; ++i) {
    if (family.head_dims[i].dtype != dtype) continue;
    text.add("%s%dx%d", separator, family.head_dims[i].hdim_q, family.head_dims[i].hdim_v);
    separator = ", ";
  }
}

void add_refusal(Text& text, const Dispatcher& dispatcher, const Row& row, Refusal refusal) {
  switch (refusal) {
    case Refusal::other_features: text.add("it answers another signature"); break;
    case Refusal::hdim_too_small:
      text.add("its head dims, %dx%d, are too small", dispatcher.hdim_q(row), dispatcher.hdim_v(row));
      break;
    case Refusal::not_built: text.add("its engine is not in this library"); break;
    case Refusal::machine_lacks: text.add("this machine has not %s", dispatcher.target(row)->isa); break;
    case Refusal::isa_forbidden:
      text.add("TILEKILN_ISA=%s forbids %s", dispatcher.isa(), dispatcher.target(row)->isa);
      break;
    case Refusal::hdim_waste: text.add("another wastes less of the head dims"); break;
    case Refusal::tile_fit: text.add("another tile fits seqlen_q better"); break;
    case Refusal::cache_too_large: text.add("its 32-bit offsets do not reach the whole cache"); break;
    case Refusal::longer_loads: text.add("32-bit offsets reach the whole cache"); break;
    case Refusal::slower_target: text.add("a faster target has it too"); break;
    case Refusal::rank: text.add("another ranks before it"); break;
    case Refusal::chosen: text.add("chosen"); break;
  }
}

// The refusals of a signature by their reason, for who reads one line for each call.
void add_refusals_by_reason(Text& text, const Dispatcher& dispatcher, const Query& query, const Choice& choice) {
  const Group* const group = dispatcher.group(query.features);
  if (group == nullptr) return;
  std::vector<bool> told(group->end - group->begin);
  const auto refusal_of = [&](uint32_t ref) { return dispatcher.judge(query, ref, choice); };
  const auto alike = [&](uint32_t a, uint32_t b, Refusal refusal) {
    const bool by_target = refusal == Refusal::machine_lacks || refusal == Refusal::isa_forbidden;
    return refusal_of(b) == refusal && (!by_target || dispatcher.row(a).target == dispatcher.row(b).target);
  };
  for (uint32_t first = group->begin; first < group->end; ++first) {
    const Refusal refusal = refusal_of(first);
    if (refusal == Refusal::chosen || told[first - group->begin]) continue;
    int count = 0;
    for (uint32_t ref = first; ref < group->end; ++ref) {
      if (!alike(first, ref, refusal)) continue;
      told[ref - group->begin] = true;
      ++count;
    }
    text.add("\n  refused: %d: ", count);
    if (refusal == Refusal::hdim_too_small) {
      text.add("their head dims are too small");
    } else {
      add_refusal(text, dispatcher, dispatcher.row(first), refusal);
    }
  }
}

// Has this choice for this problem been told before in this process?
bool told_before(const Dispatcher& dispatcher, const Query& query, const Choice& choice) {
  static std::mutex mutex;
  static std::set<std::tuple<const Family*, uint64_t, int, int, int64_t>> told;
  std::lock_guard lock(mutex);
  return !told.insert({&dispatcher.family(), query.features, query.hdim_q, query.hdim_v, choice.instance}).second;
}

}  // namespace

void describe(Text& text, const Dispatcher& dispatcher, const Query& query) {
  text.add("%s ", dispatcher.family().name);
  add_selection(text, dispatcher.family(), query.features, query.hdim_q, query.hdim_v);
}

void explain_missing(Text& text, const Dispatcher& dispatcher, const Query& query) {
  const Family& family = dispatcher.family();
  text.add("no kernel in library %s for ", dispatcher.table().receipt);
  describe(text, dispatcher, query);
  Pairs pairs(family, query);
  const HeadDims* pair = pairs.next();
  if (pair == nullptr) {
    text.add("\n  no head dims of this dtype hold %dx%d; there are ", query.hdim_q, query.hdim_v);
    add_head_dims(text, family, pairs.dtype());
    return;
  }
  // A rule may forbid the tightest head dims and leave wider ones; the problem is illegal when all are forbidden.
  const Rule* rule = forbidding_rule(family, query.features, *pair);
  for (const HeadDims* other = pair; rule != nullptr && other != nullptr; other = pairs.next()) {
    if (forbidding_rule(family, query.features, *other) == nullptr) rule = nullptr;
  }
  if (rule != nullptr) {
    text.add("\n  rule %s forbids it: %s", rule->name, rule->says);
    return;
  }
  if (!add_unusable(text, dispatcher, query)) add_nearest(text, dispatcher, query);
  add_build_line(text, dispatcher, query);
}

void explain_choice(Text& text, const Dispatcher& dispatcher, const Query& query, const Choice& choice) {
  describe(text, dispatcher, query);
  text.add("\n  chosen: %s", dispatcher.name(choice.instance));
  const Group* group = dispatcher.group(query.features);
  if (group == nullptr) return;
  for (uint32_t ref = group->begin; ref < group->end; ++ref) {
    const Refusal refusal = dispatcher.judge(query, ref, choice);
    if (refusal == Refusal::chosen) continue;
    text.add("\n  refused: %s: ", dispatcher.name(dispatcher.instance(ref)));
    add_refusal(text, dispatcher, dispatcher.row(ref), refusal);
  }
}

void explain_unfit(Text& text, const Dispatcher& dispatcher, const Query& query, const Choice& choice) {
  const Row& row = *choice.row;
  text.add("%s ", dispatcher.name(choice.instance));
  if (differences(nullptr, dispatcher, query, row) != 0) {
    text.add("does not fit the problem, it has ");
    differences(&text, dispatcher, query, row);
  } else if (!dispatcher.machine_has(row)) {
    text.add("needs %s, which this machine has not", dispatcher.target(row)->isa);
  } else if (!dispatcher.usable(row)) {
    text.add("needs %s, which TILEKILN_ISA=%s forbids", dispatcher.target(row)->isa, dispatcher.isa());
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
    text.add("\n  chosen: %s", dispatcher.name(choice.instance));
    if (!told_before(dispatcher, query, choice)) add_refusals_by_reason(text, dispatcher, query, choice);
  } else {
    explain_missing(text, dispatcher, query);
  }
  size_t length = strlen(buffer);
  buffer[length++] = '\n';
  fwrite(buffer, 1, length, stderr);
}

}  // namespace tilekiln
