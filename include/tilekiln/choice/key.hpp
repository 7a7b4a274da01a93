// SPDX-License-Identifier: MIT
// A key: what one kernel answers and how. Signature, algorithm and target; all of it makes the id.
#pragma once
#include <algorithm>

#include "tilekiln/choice/key_hash.h"
#include "tilekiln/choice/problem.hpp"

namespace tilekiln::dispatcher {

struct Key {
  std::string family;
  // The kernel does not know an axis that is not here, and answers any value of one that is here without a value.
  Values signature;
  Values algorithm;  // pipeline, tiles, pads, ...: what callers cannot see
  std::string target;
  std::string receipt;  // whose kernel it is; "": everybody's

  // A readable beginning and a hash of every field, so that two keys that differ anywhere have two ids:
  // "fmha_fwd-bf16-128x128-0f3c..". The order in which fields were said is no difference.
  std::string id() const {
    std::string said = family + '\x1f';
    for (const Values* values : {&signature, &algorithm}) {
      for (const std::string& text : sorted(*values)) said += text + '\x1f';
      said += '\x1f';
    }
    said += target + '\x1f' + receipt + '\x1f';
    std::string text = family;
    const Value dtype = signature[field::dtype];
    if (!dtype.empty()) text += "-" + dtype.text();
    const Value q = signature[field::hdim_q], v = signature[field::hdim_v];
    if (!q.empty()) text += "-" + q.text();
    if (!v.empty()) text += (q.empty() ? "-" : "x") + v.text();
    char digits[TILEKILN_KEY_DIGITS + 1];
    tilekiln_key_digits(said.data(), said.size(), digits);
    return text + "-" + digits;
  }

  friend bool operator==(const Key& a, const Key& b) {
    return a.family == b.family && a.target == b.target && a.receipt == b.receipt &&
           sorted(a.signature) == sorted(b.signature) && sorted(a.algorithm) == sorted(b.algorithm);
  }

  // "axis=value" of every field, in the order of their names.
  static std::vector<std::string> sorted(const Values& values) {
    std::vector<std::string> texts;
    for (const auto& [field, value] : values) texts.push_back(field.name() + "=" + value.text());
    std::sort(texts.begin(), texts.end());
    return texts;
  }
};

}  // namespace tilekiln::dispatcher
