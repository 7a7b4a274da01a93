// Whether a key answers a problem, and why not.
#pragma once
#include "tilekiln/dispatcher/choice.hpp"

namespace tilekiln::dispatcher {

// What the numbers and pads of an algorithm ask of sizes, by their names: without a pad a size is a multiple of its tile. One
// table for attention and products; a kernel whose algorithm has none of these fields asks nothing.
struct PadRule {
  const char* pad;   // of the algorithm; the rule is on where it is no
  const char* size;  // of the problem
  const char* tile;  // of the algorithm; 0 or nothing: no rule
};
inline const std::vector<PadRule>& pad_rules() {
  static const std::vector<PadRule> rules = {
      {"pad_s", "max_seqlen_q", "tile_m0"},
      {"pad_sk", "max_seqlen_k", "tile_n0"},
      {"pad_d", "hdim_q", "hdim_q_alignment"},
      {"pad_dv", "hdim_v", "hdim_v_alignment"},
      {"pad_m", "m", "tile_m"},
      {"pad_n", "n", "tile_n"},
      {"pad_k", "k", "tile_k"},
  };
  return rules;
}

// The size as rules mean it: max_seqlen is the length itself where no most is given.
inline int64_t size_of(const Problem& problem, std::string_view name) {
  if (name == "max_seqlen_q") return problem.effective_max_seqlen_q();
  if (name == "max_seqlen_k") return problem.effective_max_seqlen_k();
  return problem.number(Field(name));
}

// Why an algorithm cannot take the sizes of a problem; "" where it can.
inline std::string unfit(const Values& algorithm, const Problem& problem) {
  for (const PadRule& rule : pad_rules()) {
    const Value pad = algorithm[rule.pad];
    if (pad.empty() || !pad.off()) continue;
    if (std::string_view(rule.pad) == "pad_sk" && problem.has_variable_seqlen_k())
      return "it pads no seqlen_k, which varies here";
    const int64_t tile = algorithm[rule.tile].number();
    if (tile > 0 && size_of(problem, rule.size) % tile != 0)
      return std::string("it has ") + rule.pad + "=no and " + rule.size + "=" +
             std::to_string(size_of(problem, rule.size)) + " is no multiple of " + rule.tile + "=" +
             std::to_string(tile);
  }
  const int64_t longest = algorithm["max_seq_len_q"].number();
  if (longest > 0 && problem.effective_max_seqlen_q() > longest)
    return "it takes at most " + std::to_string(longest) + " queries (max_seq_len_q)";
  const int64_t splits = algorithm["max_splits_log2"].number();
  if (splits > 0 && problem.number("num_splits") > int64_t(1) << splits)
    return "it takes at most " + std::to_string(int64_t(1) << splits) + " splits (max_splits_log2)";
  return "";
}

// Whether a field of a key answers what a problem has of it. A problem that says nothing means what is usual.
inline bool answers(Field field, Value have, Value want, bool holds) {
  if (have.empty()) return true;
  if (holds) return want.number() <= have.number();
  const auto plain = [field](Value value) { return value.off() || value == field.usual(); };
  return have == want || (plain(have) && plain(want));
}

// Why a key does not answer a problem; "" where it does. The target is the registry's to filter, unless the problem names one.
inline std::string mismatch(const Key& key, const Choice& choice, const Problem& problem) {
  if (problem.family() != Value(key.family)) return "it is of " + key.family;
  const Value target = problem[field::target];
  if (!target.empty() && !key.target.empty() && target.text() != key.target) return "it is for " + key.target;
  Fields known;
  for (const auto& [field, have] : key.signature) {
    known.add(field);
    if (answers(field, have, problem[field], choice.held(field))) continue;
    if (choice.held(field)) return "its " + field.name() + ", " + have.text() + ", is too small";
    return "it has " + field.name() + "=" + have.text();
  }
  if (!problem.asked().within(known)) {
    for (const auto& [name, value] : problem.named())
      if (problem.asked().has(name) && !known.has(name))
        return "it knows no " + name + ", and the problem has " + value.text();
  }
  if (!choice.needs.holds(problem)) return "it needs " + choice.needs.text();
  return unfit(key.algorithm, problem);
}

}  // namespace tilekiln::dispatcher
