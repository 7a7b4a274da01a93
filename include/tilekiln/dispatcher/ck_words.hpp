// SPDX-License-Identifier: MIT
// CK's words for what problems and kernels have, and the values of this tree's axes that they mean.
#pragma once
#include <initializer_list>
#include <utility>

#include "tilekiln/choice/problem.hpp"
#include "tilekiln/dispatcher/errors.hpp"
#include "tilekiln/dispatcher/tables.hpp"

namespace tilekiln::dispatcher {

namespace detail {

using Words = std::vector<std::string>;

[[noreturn]] inline void refuse(const std::string& name, const std::string& was, const std::string& must) {
  throw std::invalid_argument(name + ": was " + was + ", must be " + must);
}

inline std::string listed(const Words& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

// The position of a word among those that there are.
inline size_t one_of(const char* name, std::string_view word, const Words& words) {
  for (size_t i = 0; i < words.size(); ++i)
    if (words[i] == word) return i;
  const std::string near = nearest(std::string(word), words);
  refuse(name, std::string(word), listed(words) + (near.empty() ? "" : "; did you mean " + near + "?"));
}

// The refusal of a statement; "" of one that does what it says.
template <class Statement>
std::string fault_of(const Statement& statement) {
  try {
    statement();
    return "";
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}
inline int64_t at_least(const char* name, int64_t number, int64_t least) {
  if (number < least) refuse(name, std::to_string(number), "at least " + std::to_string(least));
  return number;
}

inline bool begins_with(std::string_view name, std::string_view head) { return name.substr(0, head.size()) == head; }

inline std::string_view without_prefix(std::string_view name) {
  for (const std::string_view prefix : tables::family_prefix)
    if (begins_with(name, prefix)) return name.substr(prefix.size());
  return name;
}

}  // namespace detail

namespace ck {

// The entry of a word in a table. Throws std::invalid_argument for a word that is not there.
template <size_t count>
const tables::Word& said(const char* name, std::string_view word, const tables::Word (&table)[count]) {
  detail::Words words;
  for (const tables::Word& one : table) {
    if (one.word == word) return one;
    words.emplace_back(one.word);
  }
  detail::one_of(name, word, words);  // throws
  return table[0];
}

// fwd, fwd_splitkv, bwd_dq_dk_dv, ... with or without fmha_ before it, as the family's own name.
inline Value family(std::string_view name) {
  return said("kernel_family", detail::without_prefix(name), tables::kernel_family).value;
}

// Tells whether a word can only be one for a family of attention, whether there is such a family or not.
inline bool is_family(std::string_view name) {
  for (const std::string_view head : tables::family_heads)
    if (detail::begins_with(name, head)) return true;
  for (const tables::Word& one : tables::kernel_family)
    if (one.word == name) return true;
  return false;
}

inline bool is_backward(std::string_view family) {
  for (const std::string_view one : tables::backward_families)
    if (one == family) return true;
  return false;
}

// A target: gfx942 is ck-gfx942 here.
inline std::string target(std::string_view name) {
  return (name.substr(0, 3) == "gfx" ? "ck-" : "") + std::string(name);
}

// The axis of a family that an algorithm's word names; "" for a word that the family's plan has no axis for.
inline std::string axis(const std::string& family, const std::string& word) {
  const auto find = [&word](const auto& pairs) -> std::string {
    for (const auto& [from, to] : pairs)
      if (from == word) return to;
    return "";
  };
  if (is_backward(family)) return find(tables::backward_axes);
  for (const tables::Word& one : tables::kernel_family)
    if (one.value == family) return find(tables::axes);
  return find(tables::product_axes);
}

}  // namespace ck

// Base of builders: setters return the builder. A wrong value is refused before a field is set: std::invalid_argument,
// "field: was X, must be Y".
template <class Self>
class Builder {
 public:
  // Any field by name: min_seqlen_q, rotary_dim, has_block_table, is_gappy, an axis of a family.
  Self& set(Field field, Value value) { return put({{field, value}}); }

 protected:
  explicit Builder(Value operator_name) : problem_(operator_name) {}
  Self& put(std::initializer_list<Values::Pair> values) {
    for (const auto& [field, value] : values) problem_.set(field, value);
    return static_cast<Self&>(*this);
  }
  static std::string told(const Value& value, const char* absent) { return value.empty() ? absent : value.text(); }

  Problem problem_;
};

}  // namespace tilekiln::dispatcher
