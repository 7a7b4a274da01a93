// SPDX-License-Identifier: MIT
// A program's declaration of a kernel: its signature and algorithm, setter by setter, in CK's words or the axes'.
//
// A signature names what callers can see. An axis that it does not name is off (no, none) or as usual (mode=batch, row-major); dtype,
// head dims and others that are never off must be named. `any` names every value. An algorithm that names nothing is any.
#pragma once
#include "tilekiln/choice/key.hpp"
#include "tilekiln/dispatcher/ck_words.hpp"

namespace tilekiln::dispatcher {

// Every value of a field. CK's -1 and "*" mean the same.
inline const Value any = Value::word("any");
inline Value or_any(Value value) { return value == Value(-1) || value == Value("*") ? any : value; }

// A word that is wrong is kept in `fault`, and said by the set that the declaration stands in, with its file and line.
class Signature {
 public:
  // Values of axes, mode(value) and so on; CK's words for mask, bias, qscale and rope.
#define TILEKILN_AXIS(name, axis) Signature& name(Value value) { return set(#axis, value); }
#define TILEKILN_WORD(name) \
  Signature& name(Value value) { return word(#name, value, #name "_type", tables::name##_type); }
#define TILEKILN_SETTERS(AXIS, WORD) \
  AXIS(dtype, dtype) AXIS(mode, mode) AXIS(lse, lse) AXIS(logits, softcap) AXIS(paged_kv, paged) AXIS(sink, sink) \
  AXIS(skip, skip_min_seqlen_q) AXIS(fp8_static_quant, fp8_static_quant) AXIS(dbias, dbias) \
  AXIS(deterministic, deterministic) WORD(mask) WORD(bias) WORD(qscale) WORD(rope)
  TILEKILN_SETTERS(TILEKILN_AXIS, TILEKILN_WORD)

  // fwd, fwd_splitkv, bwd_dq_dk_dv, ..., or a family by its own name, such as gemm.
  explicit Signature(std::string_view family = "fwd") { this->family(family); }

  Signature& family(std::string_view name) {
    said([&] { family_ = ck::is_family(name) ? ck::family(name).text() : std::string(name); });
    for (const auto& [family, axis, value] : tables::signatures)
      if (family == family_) values_.set(axis, value);
    return *this;
  }
  // r or c. Kernels of c are there for none of the operators of attention.
  Signature& vlayout(std::string_view letter) {
    return set("v_layout", letter == "r" ? "row" : letter == "c" ? "column" : letter);
  }
  // hdim_v: that of q where it is not given.
  Signature& hdim(Value q, Value v = {}) {
    set(field::hdim_q, q);
    return set(field::hdim_v, v.empty() ? q : v);
  }
  Signature& dropout(Value yes) { return set("dropout", yes == Value(true) ? backward_dropout("dropout", yes) : yes); }
  // Sets an axis of dropout of the backward; a forward kernel with dropout stores on request.
  Signature& store_randval(Value yes) {
    const Value means = yes == Value(true) ? backward_dropout("store_randval", Value()) : Value();
    return means.empty() ? *this : set("dropout", means);
  }
  Signature& kv_cache(Value layout, Value lookup, Value page_size = any) {
    word("layout", layout, "layout", tables::layout).word("lookup", lookup, "lookup", tables::lookup);
    return set("page_size", page_size);
  }
  // Any axis by its name.
  Signature& set(Field axis, Value value) {
    values_.set(axis, or_any(value));
    return *this;
  }

  const std::string& family_name() const { return family_; }
  const Values& values() const { return values_; }
  const std::string& fault() const { return fault_; }

 private:
  // The value of the axis dropout for yes of a word, in the backward's families; in others, `elsewhere`.
  Value backward_dropout(std::string_view word, Value elsewhere) const {
    for (const auto& [name, value] : tables::backward_dropout)
      if (name == word && ck::is_backward(family_)) return Value(value);
    return elsewhere;
  }
  template <size_t count>
  Signature& word(const char* axis, Value value, const char* setter, const tables::Word (&table)[count]) {
    value = or_any(value);
    if (value != any) said([&] { value = ck::said(setter, value.text(), table).value; });
    return set(axis, value);
  }
  template <class Statement>
  void said(const Statement& statement) {
    const std::string fault = detail::fault_of(statement);
    if (fault_.empty()) fault_ = fault;
  }

  std::string family_ = tables::kernel_family[0].value, fault_;
  Values values_;
};

class Algorithm {
 public:
  // Numbers, tile_m0(size) and so on.
#define TILEKILN_SIZE(name) Algorithm& name(int64_t size) { return put(#name, size); }
#define TILEKILN_SIZES(X) \
  X(tile_m0) X(tile_n0) X(tile_k0) X(tile_n1) X(tile_k1) X(tile_k0max) X(num_wave_groups) X(max_splits_log2) \
  X(max_seq_len_q) X(wave_m0) X(wave_n0) X(wave_k0) X(wave_m1) X(wave_n1) X(wave_k1) X(warp_m0) X(warp_n0) \
  X(warp_k0) X(warp_m1) X(warp_n1) X(warp_k1)
  TILEKILN_SIZES(TILEKILN_SIZE)

  // Blocks: queries, keys, head dims of q a step; head dims of v and keys a step of the second product; padded head dims.
  Algorithm& tile(int64_t m0, int64_t n0, int64_t k0 = 0, int64_t n1 = 0, int64_t k1 = 0, int64_t k0max = 0) {
    return tile_m0(m0).tile_n0(n0).tile_k0(k0).tile_n1(n1).tile_k1(k1).tile_k0max(k0max);
  }
  // Rows and columns of a product's block, and what it takes of k at once.
  Algorithm& tile_mnk(int64_t m, int64_t n, int64_t k) { return put("tile_m", m).put("tile_n", n).put("tile_k", k); }
  // Waves of a block along each dimension of each product: 3, 6 or 9 numbers.
  Algorithm& wave(const std::vector<int64_t>& sizes) { return shape("wave_", sizes); }
  // Rows, columns and depth that one wave multiplies at once, of 1, 2 or 3 products: 3, 6 or 9 numbers.
  Algorithm& warp(const std::vector<int64_t>& sizes) { return shape("warp_", sizes); }
  Algorithm& pipeline(std::string_view name) { return set("pipeline", name); }
  // Sets whether seqlen_q, seqlen_k, hdim_q and hdim_v may be ragged: no multiples of the tile.
  Algorithm& padding(bool s, bool sk, bool d, bool dv) {
    return set("pad_s", s).set("pad_sk", sk).set("pad_d", d).set("pad_dv", dv);
  }
  Algorithm& trload(bool yes) { return set("trload", yes); }
  Algorithm& alignments(int64_t q, int64_t v) { return put("hdim_q_alignment", q).put("hdim_v_alignment", v); }
  // -1 leaves it to the pipeline.
  Algorithm& block_per_cu(int64_t blocks) { return set("block_per_cu", blocks); }
  Algorithm& selection_rank(int64_t rank) { return set("selection_rank", rank); }
  Algorithm& constraint(std::string_view tag) { return set("constraint", tag); }
  // Any axis of an algorithm by its name: tile_q, schedule, ...
  Algorithm& set(Field axis, Value value) {
    values_.set(axis, value);
    return *this;
  }

  // Gives what was left out by what was said: n1 is n0, k1 and k0max are k0, alignments are k0max.
  Algorithm& auto_fill() {
    const auto fill = [&](const char* to, const char* from) {
      if (values_[to].number() <= 0 && values_[from].number() > 0) values_.set(to, values_[from]);
    };
    for (const auto& [to, from] : tables::auto_fill) fill(to, from);
    return *this;
  }

  const Values& values() const { return values_; }
  const std::string& fault() const { return fault_; }

 private:
  // 0 says nothing of it.
  Algorithm& put(const char* name, int64_t size) {
    if (size < 0 && size != -1 && fault_.empty())
      fault_ = std::string(name) + ": was " + std::to_string(size) + ", must be at least 1, or 0 or -1 for any";
    values_.set(name, size > 0 ? Value(size) : Value());
    return *this;
  }
  Algorithm& shape(const std::string& prefix, const std::vector<int64_t>& sizes) {
    if (sizes.size() != 3 && sizes.size() != 6 && sizes.size() != 9 && fault_.empty())
      fault_ = prefix.substr(0, 4) + ": was " + std::to_string(sizes.size()) + " numbers, must be 3, 6 or 9";
    for (size_t i = 0; i < sizes.size() && i < 9; ++i)
      put((prefix + "mnk"[i % 3] + std::to_string(i / 3)).c_str(), sizes[i]);
    return *this;
  }

  std::string fault_;
  Values values_;
};

}  // namespace tilekiln::dispatcher
