// SPDX-License-Identifier: MIT
// Rules that weigh a kernel against others that answer the same problem (chooser.h has the order).
#pragma once
#include "tilekiln/choice/key.hpp"

namespace tilekiln::dispatcher {

// A selection over sizes: "seqlen_q>=1 seqlen_q<=8 or ...". "" always holds.
class SizeRule {
 public:
  SizeRule() = default;
  explicit SizeRule(const std::string& text) : text_(text) {
    const auto fail = [&] {
      throw std::invalid_argument("rule: was \"" + text + "\", must be such as seqlen_q>=1 seqlen_q<=8");
    };
    size_t at = 0;
    bool begins = true;  // a clause
    while (at < text.size()) {
      const size_t end = std::min(text.find(' ', at), text.size());
      const std::string word = text.substr(at, end - at);
      at = end + 1;
      if (word.empty()) continue;
      if (word == "or") {
        if (begins) fail();
        begins = true;
        conditions_.back().last = 1;
        continue;
      }
      begins = false;
      const size_t sign = std::min(word.find_first_of("<>=!"), word.size());
      const size_t number = std::min(word.find_first_not_of("<>=!", sign), word.size());
      const std::string compared = word.substr(sign, number - sign);
      const Value said(word.substr(number));
      if (sign == 0 || !said.is_number() || (compared != "<=" && compared != ">=" && compared != "=")) fail();
      const int64_t bound = said.number();
      conditions_.push_back({compared == "<=" ? INT64_MIN : bound, compared == ">=" ? INT64_MAX : bound,
                             Field(word.substr(0, sign)).number(), 0});
    }
    if (begins && !text.empty()) fail();
    if (!begins) conditions_.back().last = 1;
  }
  const std::string& text() const { return text_; }
  bool always() const { return conditions_.empty(); }
  bool holds(const Problem& problem) const {
    const Problem::Asked asked(problem);
    return tilekiln_rule_holds(conditions_.data(), static_cast<int32_t>(conditions_.size()), &asked.all);
  }
  const std::vector<tilekiln_condition>& conditions() const { return conditions_; }

 private:
  std::string text_;
  std::vector<tilekiln_condition> conditions_;
};

// Rules that weigh a kernel against others that answer the same problem.
struct Choice {
  // Fields of the signature that hold problems up to their value; all others must be equal.
  std::vector<Field> holds;
  // The size of a problem, and the number of the algorithm whose tile covers it.
  struct Fit {
    Field size;
    std::string of;
    int64_t tile;
  };
  std::vector<Fit> fit;
  SizeRule needs;  // it answers no other problems
  SizeRule best;   // it is preferred there to one without, and one without to it elsewhere
  int rank = 0;    // lower first
  int order = 0;   // of the target: higher is faster

  bool held(Field field) const { return std::find(holds.begin(), holds.end(), field) != holds.end(); }
};

}  // namespace tilekiln::dispatcher
