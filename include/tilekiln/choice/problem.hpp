// SPDX-License-Identifier: MIT
// A problem: what one call asks for. Its signature, its sizes, and what the kernel will be told at run time.
#pragma once
#include <algorithm>
#include <map>
#include <type_traits>

#include "tilekiln/choice/fields.hpp"

namespace tilekiln::dispatcher {

class Problem {
 public:
  // operator_name: "fmha_fwd", "gemm". The family is that of the main stage until somebody asks for another.
  explicit Problem(Value operator_name) {
    set(field::operator_name, operator_name);
    set(field::family, operator_name);
  }

  Problem& set(Field field, Value value) {
    values_[field.number()] = value;
    const bool asks = !value.off() && !value.is_number() && value != field.usual() && field.role() == Role::signature;
    asked_[field.number()] = asks;
    if (field.number() >= count_) count_ = field.number() + 1;
    return *this;
  }
  Value operator[](Field field) const { return values_[field.number()]; }
  // The number of a field; 0 where it has none.
  int64_t number(Field field) const { return values_[field.number()].number(); }
  // The features that it asks for: a kernel that does not know one of them does not answer.
  const Fields& asked() const { return asked_; }
  // Drops fields that this stage need not know, as other stages of its call know them.
  void forgive(const Fields& known_elsewhere) { asked_ &= ~known_elsewhere; }

  Value operator_name() const { return (*this)[field::operator_name]; }
  Value family() const { return (*this)[field::family]; }

  int64_t effective_max_seqlen_q() const { return first_above_zero(field::max_seqlen_q, field::seqlen_q); }
  int64_t effective_max_seqlen_k() const { return first_above_zero(field::max_seqlen_k, field::seqlen_k); }
  bool has_variable_seqlen_k() const {
    for (const char* name : tables::variable_seqlen_k)
      if (!(*this)[name].off()) return true;
    return false;
  }

  // Multiplications and additions, without what a mask hides: 2 batch nhead_q seqlen_q seqlen_k (hdim_q + hdim_v) of attention,
  // 2 batch m n k of a product, 2 batch groups channels outputs pixels taps of a convolution. 0 when one of the sizes is not positive.
  int64_t num_ops() const {
    const auto size = [&](Field of) { return std::max<int64_t>(number(of), 0); };
    if (!(*this)[field::m].empty()) {
      const int64_t batch = (*this)[field::batch].empty() ? 1 : size(field::batch);
      return 2 * batch * size(field::m) * size(field::n) * size(field::k);
    }
    const int64_t in_groups = size(field::groups) * size(field::channels) * size(field::outputs);
    if (!(*this)[field::taps].empty())
      return 2 * size(field::batch) * in_groups * size(field::pixels) * size(field::taps);
    return 2 * size(field::batch) * size(field::nhead_q) * std::max<int64_t>(effective_max_seqlen_q(), 0) *
           std::max<int64_t>(effective_max_seqlen_k(), 0) * (size(field::hdim_q) + size(field::hdim_v));
  }

  // Key for caches: every field that says something but the sizes, by name, apart by 0x1f. Two problems have one key exactly
  // when the same kernels answer them, sizes apart.
  std::string canonical_key() const {
    std::string key;
    for (const auto& [name, value] : named())
      if (Field(name).role() != Role::size && !value.off() && value != Field(name).usual())
        key += name + "=" + value.text() + '\x1f';
    return key;
  }
  // Text in the language of selections, sizes too.
  std::string to_string() const {
    std::string text = operator_name().text();
    for (const auto& [name, value] : named())
      if (name != "operator" && name != "family") text += " " + name + "=" + value.text();
    return text;
  }
  // The fields that are set, by name.
  std::map<std::string, Value> named() const {
    std::map<std::string, Value> result;
    for (uint32_t i = 0; i < count_; ++i)
      if (!values_[i].empty()) result.emplace(Field::of(i).name(), values_[i]);
    return result;
  }

  // A problem as the choice takes it, while it lives and does not change.
  struct Asked {
    explicit Asked(const Problem& problem) {
      static_assert(sizeof(Value) == sizeof(int64_t) && std::is_standard_layout_v<Value>);
      all.family = problem.family().bits();
      all.values = reinterpret_cast<const int64_t*>(problem.values_);
      all.features = features;
      all.count = static_cast<int32_t>(problem.count_);
      for (uint32_t i = 0; i < problem.count_; ++i)
        if (problem.asked_[i]) features[all.feature_count++] = static_cast<uint16_t>(i);
    }
    Asked(const Asked&) = delete;
    Asked& operator=(const Asked&) = delete;
    tilekiln_asked all = {};
    uint16_t features[most_fields];
  };

 private:
  int64_t first_above_zero(Field first, Field second) const {
    return number(first) > 0 ? number(first) : number(second);
  }

  Value values_[most_fields];
  Fields asked_;
  uint32_t count_ = 0;
};

}  // namespace tilekiln::dispatcher
