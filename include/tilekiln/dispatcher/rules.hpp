// Rules of the builders of problems: fields they demand, combinations they refuse, fields they derive.
// Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that.
#pragma once
#include "tilekiln/dispatcher/problem.hpp"

// clang-format off
namespace tilekiln::dispatcher::rules {

// Throws std::invalid_argument, "field: was X, must be Y".
[[noreturn]] inline void refuse(const char* field, const std::string& was, const char* must) {
  throw std::invalid_argument(std::string(field) + ": was " + was + ", must be " + must);
}
inline std::string told(const Value& value, const char* absent) { return value.empty() ? absent : value.text(); }

inline const Field field_batch("batch");
inline const Field field_bias("bias");
inline const Field field_dbias("dbias");
inline const Field field_dropout("dropout");
inline const Field field_dtype("dtype");
inline const Field field_family("family");
inline const Field field_hdim_q("hdim_q");
inline const Field field_hdim_v("hdim_v");
inline const Field field_k("k");
inline const Field field_kv_dtype("kv_dtype");
inline const Field field_lse("lse");
inline const Field field_m("m");
inline const Field field_max_seqlen_q("max_seqlen_q");
inline const Field field_mode("mode");
inline const Field field_n("n");
inline const Field field_nhead_k("nhead_k");
inline const Field field_nhead_q("nhead_q");
inline const Field field_operator("operator");
inline const Field field_page_size("page_size");
inline const Field field_page_tokens("page_tokens");
inline const Field field_store_randval("store_randval");
inline const Value word_apply("apply");
inline const Value word_elementwise("elementwise");
inline const Value word_fmha_batch_prefill("fmha_batch_prefill");
inline const Value word_fmha_bwd("fmha_bwd");
inline const Value word_fmha_bwd_dq_dk_dv("fmha_bwd_dq_dk_dv");
inline const Value word_group("group");
inline const Value word_none("none");
inline const Value word_same("same");
inline const Value word_store("store");

// Throws std::invalid_argument for a field that ProblemBuilder lacks, or for fields that do not go together.
inline void check_ProblemBuilder(const Problem& p) {
  if (p[field_dtype].empty()) refuse("data_type", "not given", "a dtype such as bf16");
  if (p.number(field_hdim_q) <= 0) refuse("hdim_q", "not given", "at least 1");
  if (p.number(field_hdim_v) <= 0) refuse("hdim_v", "not given", "at least 1");
  if (p.number(field_batch) <= 0) refuse("batch", "not given", "at least 1");
  if (p.number(field_nhead_q) <= 0) refuse("nhead_q", "not given", "at least 1");
  if (p.number(field_nhead_k) <= 0) refuse("nhead_k", "not given", "at least 1");
  if (p.number(field_nhead_q) % p.number(field_nhead_k) != 0)
    refuse("nhead_q", p[field_nhead_q].text(), ("a multiple of nhead_k, " + p[field_nhead_k].text()).c_str());
  if (p[field_operator] == word_fmha_bwd && p[field_lse].off()) refuse("lse", told(p[field_lse], "no"), "yes for bwd, which reads what the forward wrote");
  if (p[field_mode] == word_group && p.number(field_max_seqlen_q) <= 0) refuse("max_seqlen_q", told(p[field_max_seqlen_q], "0"), "at least 1 in group mode");
  if (p[field_dbias].yes() && p[field_bias] != word_elementwise) refuse("dbias", told(p[field_dbias], "no"), "no without an elementwise bias");
  if (p[field_store_randval].yes() && p[field_dropout].off()) refuse("store_randval", told(p[field_store_randval], "no"), "no without dropout");
}

// Sets the fields that follow from those given.
inline void finish_ProblemBuilder(Problem& p) {
  if (p[field_operator] == word_fmha_bwd) {
    p.set(field_lse, Value());
    p.set(field_family, word_fmha_bwd_dq_dk_dv);
  }
  if (p[field_operator] == word_fmha_bwd && p[field_dropout].off()) {
    p.set(field_dropout, word_none);
  }
  if (p[field_operator] == word_fmha_bwd && p[field_dropout].yes() && !p[field_store_randval].yes()) {
    p.set(field_dropout, word_apply);
  }
  if (p[field_operator] == word_fmha_bwd && p[field_dropout].yes() && p[field_store_randval].yes()) {
    p.set(field_dropout, word_store);
  }
  if (p[field_operator] == word_fmha_batch_prefill && p[field_kv_dtype].off()) {
    p.set(field_kv_dtype, word_same);
  }
  if (p[field_operator] == word_fmha_batch_prefill && p.number(field_page_size) >= 1) {
    p.set(field_page_tokens, p[field_page_size]);
  }
  if (p[field_operator] == word_fmha_batch_prefill && p.number(field_page_size) >= 2 && p.number(field_page_size) <= 63) {
    p.set(field_page_size, Value(int64_t{16}));
  }
  if (p[field_operator] == word_fmha_batch_prefill && p.number(field_page_size) >= 64) {
    p.set(field_page_size, Value(int64_t{1024}));
  }
}

// Throws std::invalid_argument for a field that GemmSetters lacks, or for fields that do not go together.
inline void check_GemmSetters(const Problem& p) {
  if (p.number(field_m) <= 0) refuse("m", "not given", "at least 1");
  if (p.number(field_n) <= 0) refuse("n", "not given", "at least 1");
  if (p.number(field_k) <= 0) refuse("k", "not given", "at least 1");
}

}  // namespace tilekiln::dispatcher::rules
