// SPDX-License-Identifier: MIT
// Signatures as rules, receipts and people read them: values of axes, conditions, and the legal integers that hold a problem.
#pragma once

#include <string.h>

#include "kernels/runtime/dispatch.h"
#include "kernels/runtime/text.h"

namespace tilekiln {

constexpr uint8_t boolean = 0, enumerated = 1, integer = 2;  // Axis::kind

inline uint64_t code_of(const Axis& axis, uint64_t signature) {
  return (signature >> axis.shift) & ((uint64_t(1) << axis.bits) - 1);
}

inline void add_value(Text& text, const Axis& axis, uint64_t code) {
  if (axis.kind == enumerated && code < axis.value_count) {
    text.add("%s", axis.values[code]);
  } else if (axis.kind == boolean) {
    text.add("%s", code != 0 ? "yes" : "no");
  } else {
    text.add("%llu", static_cast<unsigned long long>(code));
  }
}

// A signature as axis=value pairs. `values` holds the integer axes, of a problem or of an instance; `codes` the others.
inline void add_selection(Text& text, const Family& family, uint64_t codes, const int64_t* values) {
  for (uint32_t i = 0; i < family.axis_count; ++i) {
    const Axis& axis = family.axes[i];
    text.add("%s%s=", i == 0 ? "" : " ", axis.name);
    if (axis.kind == integer) {
      text.add("%lld", static_cast<long long>(*values++));
    } else {
      add_value(text, axis, code_of(axis, codes));
    }
  }
}

inline bool holds(const Family& family, const Clause& clause, uint64_t codes, const int64_t* values) {
  for (uint32_t i = 0; i < clause.count; ++i) {
    const Condition& condition = clause.conditions[i];
    const Axis& axis = family.axes[condition.axis];
    bool met = false;
    if (axis.kind == integer) {
      int at = 0;
      for (uint8_t before = 0; before < condition.axis; ++before) at += family.axes[before].kind == integer;
      for (uint32_t j = 0; j < condition.integer_count; ++j) met = met || condition.integers[j] == values[at];
    } else {
      met = (condition.allowed >> code_of(axis, codes)) & 1;
    }
    if (!met) return false;
  }
  return true;
}

inline const Rule* forbidding_rule(const Family& family, Rules rules, uint64_t codes, const int64_t* values) {
  for (uint32_t i = 0; i < rules.count; ++i) {
    if (holds(family, rules.list[i].when, codes, values)) return &rules.list[i];
  }
  return nullptr;
}
inline const Rule* forbidding_rule(const Family& family, uint64_t codes, const int64_t* values) {
  return forbidding_rule(family, {family.rules, family.rule_count}, codes, values);
}

inline bool lists(const Family& family, const ReceiptInfo& receipt, uint64_t codes, const int64_t* values) {
  for (uint32_t i = 0; i < receipt.clause_count; ++i) {
    if (holds(family, receipt.clauses[i], codes, values)) return true;
  }
  return false;
}

// The receipt that lists a signature: `own` if it does, else the first. Null when none does.
inline const ReceiptInfo* listing_receipt(const Family& family, const char* own, uint64_t codes,
                                          const int64_t* values) {
  const ReceiptInfo* found = nullptr;
  for (uint32_t i = 0; i < family.receipt_count; ++i) {
    const ReceiptInfo& receipt = family.receipts[i];
    const bool mine = strcmp(receipt.name, own) == 0;
    if ((found == nullptr || mine) && lists(family, receipt, codes, values)) found = &receipt;
  }
  return found;
}

// The legal values of the integer axes that hold a problem, by least waste, one combination after the other.
class Legal {
 public:
  Legal(const Dispatcher& dispatcher, const Query& query)
      : integers_(dispatcher.family().integers), count_(dispatcher.integer_count()), query_(query) {
    const Family& family = dispatcher.family();
    if (integers_.by != 255) code_ = code_of(family.axes[integers_.by], query.codes);
    for (uint32_t i = 0, at = 0; i < family.axis_count; ++i) {
      if (family.axes[i].kind == integer) equal_[at++] = family.axes[i].equal;
    }
  }
  // The next values, null at the end.
  const int64_t* next() {
    uint32_t best = integers_.count;
    for (uint32_t i = 0; i < integers_.count; ++i) {
      if (!holds_query(i) || (any_ && !before(last_, i))) continue;
      if (best == integers_.count || before(i, best)) best = i;
    }
    if (best == integers_.count) return nullptr;
    any_ = true;
    last_ = best;
    for (int i = 0; i < count_; ++i) values_[i] = row(best)[1 + i];
    return values_;
  }
  // All of the signature's, as people write them: 64x64, 128x128.
  void add_all(Text& text) const {
    const char* separator = "";
    for (uint32_t i = 0; i < integers_.count; ++i) {
      if (row(i)[0] != code_) continue;
      text.add("%s", separator);
      for (int j = 0; j < count_; ++j) text.add("%s%u", j == 0 ? "" : "x", row(i)[1 + j]);
      separator = ", ";
    }
  }

 private:
  const uint32_t* row(uint32_t i) const { return integers_.legal + i * static_cast<uint32_t>(1 + count_); }
  bool holds_query(uint32_t i) const {
    if (row(i)[0] != code_) return false;
    for (int j = 0; j < count_; ++j) {
      const int64_t have = row(i)[1 + j], want = query_.wants[j];
      if (equal_[j] ? have != want : have < want) return false;
    }
    return true;
  }
  // Orders by the sum of what they hold; equal sums by the first axis that differs.
  bool before(uint32_t a, uint32_t b) const {
    uint64_t first = 0, second = 0;
    for (int j = 0; j < count_; ++j) first += row(a)[1 + j], second += row(b)[1 + j];
    if (first != second) return first < second;
    for (int j = 0; j < count_; ++j) {
      if (row(a)[1 + j] != row(b)[1 + j]) return row(a)[1 + j] < row(b)[1 + j];
    }
    return false;
  }
  const Integers& integers_;
  const int count_;
  const Query& query_;
  uint64_t code_ = 0;
  bool equal_[max_integers] = {}, any_ = false;
  uint32_t last_ = 0;
  int64_t values_[max_integers] = {};
};

}  // namespace tilekiln
