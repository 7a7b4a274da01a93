// SPDX-License-Identifier: MIT
// Keys, choices and problems as the choice takes them (mismatch.h, chooser.h), and why a key does not answer a problem.
#pragma once
#include "tilekiln/choice/choice.hpp"

namespace tilekiln::dispatcher {

// The tables of kernels/dispatcher.yaml, which the choice asks for, in numbers of fields.
inline const tilekiln_terms& terms() {
  struct Terms {
    int64_t usual[most_fields];
    std::vector<tilekiln_pad> pads;
    std::vector<tilekiln_limit> limits;
    std::vector<uint16_t> variable;
    tilekiln_terms all = {};
    Terms() {
      const auto number = [](const char* name) -> uint16_t { return Field(name).number(); };
      std::fill(std::begin(usual), std::end(usual), TILEKILN_NOTHING);
      for (const auto& [name, value] : tables::usual) usual[number(name)] = Value(value).bits();
      for (const tables::Pad& one : tables::pads)
        pads.push_back({number(one.pad), number(one.size), number(one.tile), one.varies});
      for (const tables::Limit& one : tables::limits)
        limits.push_back({number(one.limit), number(one.size), one.log2, one.of});
      for (const char* name : tables::variable_seqlen_k) variable.push_back(number(name));
      all.usual = usual;
      all.usual_count = most_fields;
      all.pads = pads.data();
      all.limits = limits.data();
      all.variable = variable.data();
      all.pad_count = static_cast<uint16_t>(pads.size());
      all.limit_count = static_cast<uint16_t>(limits.size());
      all.variable_count = static_cast<uint16_t>(variable.size());
      all.target = field::target.number();
      all.seqlen_q = field::seqlen_q.number(), all.seqlen_k = field::seqlen_k.number();
      all.max_seqlen_q = field::max_seqlen_q.number(), all.max_seqlen_k = field::max_seqlen_k.number();
    }
  };
  static const Terms made;
  return made.all;
}

inline const tilekiln_names& names() {
  static const tilekiln_names all = {
      [](const void*, uint16_t field) { return Field::of(field).name().c_str(); },
      [](const void*, int64_t value) { return Value::word_of(value); },
      nullptr,
  };
  return all;
}

// A key with its choice. The key must live as long.
class Kernel {
 public:
  Kernel(const Key& key, const Choice& choice) {
    const auto add = [](std::vector<tilekiln_said>& to, Field field, int64_t value) {
      to.push_back({value, field.number()});
    };
    for (const auto& [field, value] : key.signature) add(signature_, field, value.bits());
    for (const tables::Pad& one : tables::pads)
      if (key.algorithm.has(one.pad))
        for (const char* name : {one.pad, one.tile}) add(algorithm_, name, key.algorithm[name].bits());
    for (const tables::Limit& one : tables::limits)
      if (key.algorithm.has(one.limit)) add(algorithm_, one.limit, key.algorithm[one.limit].bits());
    for (const Choice::Fit& fit : choice.fit) {
      if (fit.tile < 1) throw std::invalid_argument("tile: was " + std::to_string(fit.tile) + ", must be 1 or more");
      add(fit_, fit.size, fit.tile);
    }
    for (const Field field : choice.holds) holds_.push_back(field.number());
    all_.family = Value(key.family).bits();
    all_.target = Value(key.target).bits();
    all_.signature = signature_.data(), all_.signature_count = static_cast<int32_t>(signature_.size());
    all_.algorithm = algorithm_.data(), all_.algorithm_count = static_cast<int32_t>(algorithm_.size());
    all_.fit = fit_.data(), all_.fit_count = static_cast<int32_t>(fit_.size());
    all_.holds = holds_.data(), all_.hold_count = static_cast<int32_t>(holds_.size());
    all_.needs = choice.needs.conditions().data();
    all_.need_count = static_cast<int32_t>(choice.needs.conditions().size());
    all_.best = choice.best.conditions().data();
    all_.best_count = static_cast<int32_t>(choice.best.conditions().size());
    all_.rank = choice.rank, all_.order = choice.order;
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  tilekiln_kernel& all() { return all_; }

 private:
  std::vector<tilekiln_said> signature_, algorithm_, fit_;
  std::vector<uint16_t> holds_;
  tilekiln_kernel all_ = {};
};

// The reason why a key does not answer a problem; "" where it does. The target is the registry's to filter, unless the problem names one.
inline std::string mismatch(const Key& key, const Choice& choice, const Problem& problem) {
  Kernel kernel(key, choice);
  const Problem::Asked asked(problem);
  const tilekiln_mismatch why = tilekiln_mismatch_of(&terms(), &kernel.all(), &asked.all, &names());
  const auto said = [&](char* text, size_t capacity) {
    return static_cast<size_t>(tilekiln_mismatch_text(&why, &names(), choice.needs.text().c_str(), text, capacity));
  };
  std::string text(said(nullptr, 0), '\0');
  if (!text.empty()) said(text.data(), text.size() + 1);
  return text;
}

// The number of fields in which a key does not answer.
inline int differences(const Key& key, const Choice& choice, const Problem& problem) {
  Kernel kernel(key, choice);
  const Problem::Asked asked(problem);
  return tilekiln_differences(&terms(), &kernel.all(), &asked.all);
}

}  // namespace tilekiln::dispatcher
