// Whether a key answers a problem, and why not.
#pragma once
#include "tilekiln/dispatcher/choice.hpp"

namespace tilekiln::dispatcher {

// The size as rules mean it: max_seqlen is the length itself where no most is given.
inline int64_t size_of(const Problem& problem, std::string_view name) {
  if (name == "max_seqlen_q") return problem.effective_max_seqlen_q();
  if (name == "max_seqlen_k") return problem.effective_max_seqlen_k();
  return problem.number(Field(name));
}

// The reason why an algorithm cannot take the sizes of a problem (tables::pads, tables::limits); "" where it can. An algorithm with none of
// their fields takes any.
inline std::string unfit(const Values& algorithm, const Problem& problem) {
  for (const tables::Pad& rule : tables::pads) {
    const Value pad = algorithm[rule.pad];
    if (pad.empty() || !pad.off()) continue;
    if (rule.varies && problem.has_variable_seqlen_k()) return "it pads no seqlen_k, which varies here";
    const int64_t tile = algorithm[rule.tile].number();
    if (tile > 0 && size_of(problem, rule.size) % tile != 0)
      return std::string("it has ") + rule.pad + "=no and " + rule.size + "=" +
             std::to_string(size_of(problem, rule.size)) + " is no multiple of " + rule.tile + "=" +
             std::to_string(tile);
  }
  for (const tables::Limit& limit : tables::limits) {
    const int64_t said = algorithm[limit.limit].number(), most = limit.log2 ? int64_t(1) << said : said;
    if (said > 0 && size_of(problem, limit.size) > most)
      return "it takes at most " + std::to_string(most) + " " + limit.of + " (" + limit.limit + ")";
  }
  return "";
}

// Whether a field of a key answers what a problem has of it. A problem that says nothing means what is usual.
inline bool answers(Field field, Value have, Value want, bool holds) {
  if (have.empty()) return true;
  if (holds) return want.number() <= have.number();
  const auto plain = [field](Value value) { return value.off() || value == field.usual(); };
  return have == want || (plain(have) && plain(want));
}

// The reason why a key does not answer a problem; "" where it does. The target is the registry's to filter, unless the problem names one.
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
