// SPDX-License-Identifier: MIT
// Setters of the builders of problems, and what build() demands, refuses and derives.
// Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that.
#pragma once
#include "tilekiln/dispatcher/ck_words.hpp"

// clang-format off
namespace tilekiln::dispatcher::setters {

inline const Field field_activation("activation"), field_batch("batch"), field_bias("bias"), field_c("c"), field_dbias("dbias"), field_deterministic("deterministic"), field_dropout("dropout"), field_dtype("dtype"), field_family("family"), field_fp8_static_quant("fp8_static_quant"), field_hdim_q("hdim_q"), field_hdim_v("hdim_v"), field_k("k"), field_kv_dtype("kv_dtype"), field_layout("layout"), field_layout_a("layout_a"), field_layout_b("layout_b"), field_layout_out("layout_out"), field_lookup("lookup"), field_lse("lse"), field_m("m"), field_mask("mask"), field_mask_origin("mask_origin"), field_max_seqlen_k("max_seqlen_k"), field_max_seqlen_q("max_seqlen_q"), field_mode("mode"), field_n("n"), field_nhead_k("nhead_k"), field_nhead_q("nhead_q"), field_num_splits("num_splits"), field_operator("operator"), field_page_size("page_size"), field_page_tokens("page_tokens"), field_paged("paged"), field_persistent("persistent"), field_qscale("qscale"), field_rope("rope"), field_scaled("scaled"), field_seqlen_k("seqlen_k"), field_seqlen_q("seqlen_q"), field_sink("sink"), field_sink_size("sink_size"), field_skip_min_seqlen_q("skip_min_seqlen_q"), field_softcap("softcap"), field_split_k("split_k"), field_stage("stage"), field_store_randval("store_randval"), field_stride_a("stride_a"), field_stride_b("stride_b"), field_stride_out("stride_out"), field_target("target"), field_v_layout("v_layout"), field_window_left("window_left"), field_window_right("window_right"), field_workspace_budget("workspace_budget");
inline const Value word_apply("apply"), word_batch("batch"), word_column("column"), word_elementwise("elementwise"), word_fmha_batch_prefill("fmha_batch_prefill"), word_fmha_bwd("fmha_bwd"), word_fmha_bwd_dq_dk_dv("fmha_bwd_dq_dk_dv"), word_fmha_fwd("fmha_fwd"), word_fp32("fp32"), word_gemm("gemm"), word_group("group"), word_none("none"), word_row("row"), word_same("same"), word_store("store"), word_window("window");

// A problem of attention, by upstream's setters over the fields of this tree's families.
template <class Self>
class ProblemSetters : public Builder<Self> {
 public:
  explicit ProblemSetters(Value operator_name = word_fmha_fwd) : Builder<Self>(operator_name) {}
  // fwd, fwd_pagedkv, fwd_splitkv, fwd_appendkv, batch_prefill or bwd, with or without fmha_ before it.
  Self& api_family(std::string_view name) { const tables::Word& of_name = ck::said("api_family", detail::without_prefix(name), tables::api_family); return this->put({{field_operator, of_name.value}}); }
  // The stage that is asked for; the main stage of api_family unless given.
  Self& kernel_family(std::string_view name) { const tables::Word& of_name = ck::said("kernel_family", detail::without_prefix(name), tables::kernel_family); return this->put({{field_stage, of_name.value}}); }
  // A target of the tree, such as cpu-avx512 or gfx942; unless given, any.
  Self& gfx_arch(std::string_view target) { return this->put({{field_target, target}}); }
  // fp32, fp16, bf16, fp8bf16, fp8fp32, ...
  Self& data_type(std::string_view dtype) { return this->put({{field_dtype, dtype}}); }
  // Head dims, batch and lengths.
  Self& dims(int64_t hdim_q, int64_t hdim_v, int64_t batch, int64_t seqlen_q, int64_t seqlen_k) { return this->put({{field_hdim_q, detail::at_least("hdim_q", hdim_q, 1)}, {field_hdim_v, detail::at_least("hdim_v", hdim_v, 1)}, {field_batch, detail::at_least("batch", batch, 1)}, {field_seqlen_q, detail::at_least("seqlen_q", seqlen_q, 0)}, {field_seqlen_k, detail::at_least("seqlen_k", seqlen_k, 0)}}); }
  // Heads of q and of k and v.
  Self& nheads(int64_t nhead_q, int64_t nhead_k) { return this->put({{field_nhead_q, detail::at_least("nhead_q", nhead_q, 1)}, {field_nhead_k, detail::at_least("nhead_k", nhead_k, 1)}}); }
  // no_mask, top_left (or causal), bottom_right, window_generic. One kernel serves all but no_mask.
  Self& mask_type(std::string_view name) { const tables::Word& of_name = ck::said("mask_type", name, tables::mask_type); return this->put({{field_mask, of_name.value}, {field_mask_origin, of_name.more}}); }
  // no_bias, elementwise or alibi.
  Self& bias_type(std::string_view name) { const tables::Word& of_name = ck::said("bias_type", name, tables::bias_type); return this->put({{field_bias, of_name.value}}); }
  // Whether the log-sum-exp of every row is written.
  Self& lse(bool wanted = true) { return this->put({{field_lse, wanted}}); }
  // Whether probabilities are dropped.
  Self& dropout(bool wanted = true) { return this->put({{field_dropout, wanted}}); }
  // no_scale, pertensor, blockscale or kv_blockscale.
  Self& qscale_type(std::string_view name) { const tables::Word& of_name = ck::said("qscale_type", name, tables::qscale_type); return this->put({{field_qscale, of_name.value}}); }
  // none, interleaved or half_rotated.
  Self& rope_type(std::string_view name) { const tables::Word& of_name = ck::said("rope_type", name, tables::rope_type); return this->put({{field_rope, of_name.value}}); }
  // Whether scores are capped by a tanh.
  Self& logits_soft_cap(bool wanted = true) { return this->put({{field_softcap, wanted}}); }
  // Whether a row of v lies together, as it usually does.
  Self& v_rowmajor(bool wanted = true) { return this->put({{field_v_layout, wanted ? word_row : word_column}}); }
  // Whether sequences are packed one after another.
  Self& group_mode(bool wanted = true) { return this->put({{field_mode, wanted ? word_group : word_batch}}); }
  // Whether keys and values lie in pages.
  Self& paged_kv(bool wanted = true) { return this->put({{field_paged, wanted}}); }
  // Static quantisation of fp8, which has no kernels here; qscale_type("pertensor") has.
  Self& fp8_static_quant(bool wanted = true) { return this->put({{field_fp8_static_quant, wanted}}); }
  // Whether sequences of at most min_seqlen_q queries are left to another call.
  Self& skip_min_seqlen_q(bool wanted = true) { return this->put({{field_skip_min_seqlen_q, wanted}}); }
  // Whether attention sinks are honoured.
  Self& sink(bool wanted = true) { return this->put({{field_sink, wanted}}); }
  // vectorized or linear; vllm (a 2D block table) or sglang (a 1D page table); tokens of a page.
  Self& kv_cache(std::string_view layout, std::string_view lookup, int64_t page_size) { const tables::Word& of_layout = ck::said("layout", layout, tables::layout); const tables::Word& of_lookup = ck::said("lookup", lookup, tables::lookup); return this->put({{field_layout, of_layout.value}, {field_lookup, of_lookup.value}, {field_page_size, detail::at_least("page_size", page_size, 1)}}); }
  // Columns to the left and right of the diagonal that a row sees; -1: all. It makes a mask where there was none.
  Self& window(int64_t window_left, int64_t window_right) { this->put({{field_window_left, detail::at_least("window_left", window_left, -1)}, {field_window_right, detail::at_least("window_right", window_right, -1)}}); const Problem& p = this->problem_; if (p.number(field_window_left) >= 0) this->put({{field_mask, word_window}}); if (p.number(field_window_right) >= 0) this->put({{field_mask, word_window}}); return static_cast<Self&>(*this); }
  // The first keys that stay visible whatever the left window says; more than 0 is a sink.
  Self& sink_size(int64_t sink_size) { this->put({{field_sink_size, detail::at_least("sink_size", sink_size, 0)}}); const Problem& p = this->problem_; if (p.number(field_sink_size) >= 1) this->put({{field_sink, Value(true)}}); return static_cast<Self&>(*this); }
  // The longest lengths of group mode.
  Self& max_seqlen(int64_t max_seqlen_q, int64_t max_seqlen_k) { return this->put({{field_max_seqlen_q, detail::at_least("max_seqlen_q", max_seqlen_q, 0)}, {field_max_seqlen_k, detail::at_least("max_seqlen_k", max_seqlen_k, 0)}}); }
  // Parts of the keys of split-KV.
  Self& num_splits(int64_t num_splits) { return this->put({{field_num_splits, detail::at_least("num_splits", num_splits, 1)}}); }
  // Of the backward: the gradient of the bias, the random bytes stored, the same bits every time.
  Self& bwd_flags(bool dbias, bool store_randval, bool deterministic) { return this->put({{field_dbias, dbias}, {field_store_randval, store_randval}, {field_deterministic, deterministic}}); }
  // Throws std::invalid_argument for what is missing or does not go together.
  Problem build() const {
    Problem p = this->problem_;
    if (p[field_dtype].empty()) detail::refuse("data_type", "not given", "a dtype such as bf16");
    if (p.number(field_hdim_q) <= 0) detail::refuse("hdim_q", "not given", "at least 1");
    if (p.number(field_hdim_v) <= 0) detail::refuse("hdim_v", "not given", "at least 1");
    if (p.number(field_batch) <= 0) detail::refuse("batch", "not given", "at least 1");
    if (p.number(field_nhead_q) <= 0) detail::refuse("nhead_q", "not given", "at least 1");
    if (p.number(field_nhead_k) <= 0) detail::refuse("nhead_k", "not given", "at least 1");
    if (p.number(field_nhead_q) % p.number(field_nhead_k) != 0) detail::refuse("nhead_q", p[field_nhead_q].text(), "a multiple of nhead_k, " + p[field_nhead_k].text());
    if (p[field_operator] == word_fmha_bwd && p[field_lse].off()) detail::refuse("lse", this->told(p[field_lse], "no"), "yes for bwd, which reads what the forward wrote");
    if (p[field_mode] == word_group && p.number(field_max_seqlen_q) <= 0) detail::refuse("max_seqlen_q", this->told(p[field_max_seqlen_q], "0"), "at least 1 in group mode");
    if (p[field_dbias].yes() && p[field_bias] != word_elementwise) detail::refuse("dbias", this->told(p[field_dbias], "no"), "no without an elementwise bias");
    if (p[field_store_randval].yes() && p[field_dropout].off()) detail::refuse("store_randval", this->told(p[field_store_randval], "no"), "no without dropout");
    p.set(field_family, p[field_operator]);
    if (p[field_operator] == word_fmha_bwd) { p.set(field_lse, Value()); p.set(field_family, word_fmha_bwd_dq_dk_dv); }
    if (p[field_operator] == word_fmha_bwd && p[field_dropout].off()) p.set(field_dropout, word_none);
    if (p[field_operator] == word_fmha_bwd && p[field_dropout].yes() && !p[field_store_randval].yes()) p.set(field_dropout, word_apply);
    if (p[field_operator] == word_fmha_bwd && p[field_dropout].yes() && p[field_store_randval].yes()) p.set(field_dropout, word_store);
    if (p[field_operator] == word_fmha_batch_prefill && p[field_kv_dtype].off()) p.set(field_kv_dtype, word_same);
    if (p[field_operator] == word_fmha_batch_prefill && p.number(field_page_size) >= 1) p.set(field_page_tokens, p[field_page_size]);
    if (p[field_operator] == word_fmha_batch_prefill && p.number(field_page_size) >= 2 && p.number(field_page_size) <= 63) p.set(field_page_size, Value(int64_t{16}));
    if (p[field_operator] == word_fmha_batch_prefill && p.number(field_page_size) >= 64) p.set(field_page_size, Value(int64_t{1024}));
    if (!p[field_stage].empty()) { p.set(field_family, p[field_stage]); p.set(field_stage, Value()); }
    return p;
  }
};

// A problem of a matrix product, with dtypes, layouts and strides.
template <class Self>
class GemmSetters : public Builder<Self> {
 public:
  explicit GemmSetters(Value operator_name = word_gemm) : Builder<Self>(operator_name) { this->put({{field_dtype, word_fp32}, {field_layout_a, word_row}, {field_layout_b, word_column}, {field_layout_out, word_row}}); }
  // (m, k) times (k, n).
  Self& dimensions(int64_t m, int64_t n, int64_t k) { return this->put({{field_m, detail::at_least("m", m, 1)}, {field_n, detail::at_least("n", n, 1)}, {field_k, detail::at_least("k", k, 1)}}); }
  // Elements from one row to the next (column of a column-major matrix); 0: as close as they go.
  Self& strides(int64_t stride_a, int64_t stride_b, int64_t stride_out) { return this->put({{field_stride_a, detail::at_least("stride_a", stride_a, 0)}, {field_stride_b, detail::at_least("stride_b", stride_b, 0)}, {field_stride_out, detail::at_least("stride_out", stride_out, 0)}}); }
  // relu, gelu, ...; none.
  Self& activation(std::string_view name) { return this->put({{field_activation, name}}); }
  // Whether a bias is added.
  Self& bias(bool wanted = true) { return this->put({{field_bias, wanted}}); }
  // Whether beta c is added.
  Self& c(bool wanted = true) { return this->put({{field_c, wanted}}); }
  // Whether row_scale or column_scale multiplies the product.
  Self& scaled(bool wanted = true) { return this->put({{field_scaled, wanted}}); }
  // Products of a batch.
  Self& batch(int64_t batch) { return this->put({{field_batch, detail::at_least("batch", batch, 1)}}); }
  // Parts of k.
  Self& split_k(int64_t split_k) { return this->put({{field_split_k, detail::at_least("split_k", split_k, 1)}}); }
  // Bytes that a product may take besides.
  Self& workspace_budget(int64_t workspace_budget) { return this->put({{field_workspace_budget, detail::at_least("workspace_budget", workspace_budget, 0)}}); }
  // Whether threads stay for all tiles.
  Self& persistent(bool wanted = true) { return this->put({{field_persistent, wanted}}); }
  // Throws std::invalid_argument for what is missing or does not go together.
  Problem build() const {
    Problem p = this->problem_;
    if (p.number(field_m) <= 0) detail::refuse("m", "not given", "at least 1");
    if (p.number(field_n) <= 0) detail::refuse("n", "not given", "at least 1");
    if (p.number(field_k) <= 0) detail::refuse("k", "not given", "at least 1");
    p.set(field_family, p[field_operator]);
    return p;
  }
};

}  // namespace tilekiln::dispatcher::setters
