// The order of preference among kernels that all answer a problem.
//
// The score of a kernel, lower first: what its capacity wastes (head dims beyond the problem's), its priority in the registry, the
// declared fit (made for these sizes; the tile whose rows cover the problem with the least waste, a quarter of the problem forgiven; the
// taller of two that fit alike), the speed of its target, its rank. It is the order of the libraries' own choice
// (kernels/runtime/dispatch.h), with priority, which only registries have.
#pragma once
#include "tilekiln/dispatcher/errors.hpp"
#include "tilekiln/dispatcher/fit.h"
#include "tilekiln/dispatcher/key.hpp"

namespace tilekiln::dispatcher {

// A selection over sizes: "seqlen_q>=1 seqlen_q<=8 or ...". "" always holds.
class SizeRule {
 public:
  SizeRule() = default;
  explicit SizeRule(const std::string& text) : text_(text) {
    size_t at = 0;
    if (text.empty()) return;
    clauses_.emplace_back();
    while (at < text.size()) {
      const size_t end = std::min(text.find(' ', at), text.size());
      const std::string word = text.substr(at, end - at);
      at = end + 1;
      if (word.empty()) continue;
      if (word == "or") {
        clauses_.emplace_back();
        continue;
      }
      const size_t sign = std::min(word.find_first_of("<>=!"), word.size());
      const size_t number = std::min(word.find_first_not_of("<>=!", sign), word.size());
      const std::string compared = word.substr(sign, number - sign);
      const Value said(word.substr(number));
      if (sign == 0 || !said.is_number() || (compared != "<=" && compared != ">=" && compared != "="))
        throw std::invalid_argument("rule: was \"" + text + "\", must be such as seqlen_q>=1 seqlen_q<=8");
      const int64_t bound = said.number();
      clauses_.back().push_back(
          {Field(word.substr(0, sign)), compared == "<=" ? INT64_MIN : bound, compared == ">=" ? INT64_MAX : bound});
    }
  }
  bool always() const { return clauses_.empty(); }
  const std::string& text() const { return text_; }
  bool holds(const Problem& problem) const {
    if (clauses_.empty()) return true;
    for (const auto& clause : clauses_) {
      bool all = true;
      for (const Range& range : clause) {
        const int64_t size = problem.number(range.field);
        all = all && range.least <= size && size <= range.most;
      }
      if (all) return true;
    }
    return false;
  }

 private:
  struct Range {
    Field field;
    int64_t least, most;
  };
  std::string text_;
  std::vector<std::vector<Range>> clauses_;
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

// Capacity that a problem leaves unused.
inline int64_t waste(const Key& key, const Choice& choice, const Problem& problem) {
  int64_t sum = 0;
  for (const Field field : choice.holds) sum += key.signature[field].number() - problem.number(field);
  return sum;
}

struct Fitted {
  int preference;
  tilekiln_fit fit;
};
inline Fitted fitted(const Choice& choice, const Problem& problem) {
  const bool rules = !choice.best.always();
  Fitted result = {tilekiln_preference(rules, rules && choice.best.holds(problem)), {1, 1}};
  for (const Choice::Fit& fit : choice.fit) tilekiln_fit_add(&result.fit, problem.number(fit.size), fit.tile);
  return result;
}

}  // namespace tilekiln::dispatcher
