// A key: what one kernel answers and how. Signature, algorithm and target; all of it makes the id.
#pragma once
#include <algorithm>
#include <cstdio>

#include "tilekiln/dispatcher/problem.hpp"

namespace tilekiln::dispatcher {

struct Key {
  std::string family;
  // What it says nothing of, it does not know; an axis without a value it answers with any.
  Values signature;
  Values algorithm;  // pipeline, tiles, pads, ...: what callers cannot see
  std::string target;
  std::string receipt;  // whose kernel it is; "": everybody's

  // A readable beginning and a hash of every field, so that two keys that differ anywhere have two ids:
  // "fmha_fwd-bf16-128x128-0f3c..". The order in which fields were said is no difference.
  std::string id() const {
    uint64_t hash[2] = {1469598103934665603u, 0x9e3779b97f4a7c15u};
    const auto mix = [&hash](const std::string& text) {
      for (const char c : text + '\x1f') {
        hash[0] = (hash[0] ^ static_cast<unsigned char>(c)) * 1099511628211u;
        hash[1] = (hash[1] + static_cast<unsigned char>(c)) * 0xff51afd7ed558ccdu;
        hash[1] ^= hash[1] >> 32;
      }
    };
    mix(family);
    for (const Values* values : {&signature, &algorithm}) {
      for (const std::string& text : sorted(*values)) mix(text);
      mix("");
    }
    mix(target);
    mix(receipt);
    std::string text = family;
    const Value dtype = signature[field::dtype];
    if (!dtype.empty()) text += "-" + dtype.text();
    const Value q = signature[field::hdim_q], v = signature[field::hdim_v];
    if (!q.empty()) text += "-" + q.text();
    if (!v.empty()) text += (q.empty() ? "-" : "x") + v.text();
    char digits[40];
    std::snprintf(digits, sizeof(digits), "-%016llx%08llx", static_cast<unsigned long long>(hash[0]),
                  static_cast<unsigned long long>(hash[1] >> 32));
    return text + digits;
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
