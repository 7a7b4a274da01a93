// Problems of attention, setter by setter. A wrong value is refused where it is given, what does not go together by build():
// std::invalid_argument, "field: was X, must be Y".
#pragma once
#include "tilekiln/dispatcher/ck_words.hpp"
#include "tilekiln/dispatcher/rules.hpp"

namespace tilekiln::dispatcher {

// The setters that upstream's builder has, by upstream's names, over the fields of this tree's families; `set` gives any other.
class ProblemBuilder {
 public:
  ProblemBuilder() : problem_(tables::problem_begins[0].second) {}

  // fwd, fwd_pagedkv, fwd_splitkv, fwd_appendkv, batch_prefill or bwd, with or without fmha_ before it.
  ProblemBuilder& api_family(std::string_view name) {
    const Value value = ck::said("api_family", detail::without_prefix(name), tables::api_family).value;
    problem_.set(field::operator_name, value);
    if (!family_given_) problem_.set(field::family, value);
    return *this;
  }
  // The stage that is asked for: fwd_splitkv_combine, bwd_dot_do_o, ...; that of api_family unless given.
  ProblemBuilder& kernel_family(std::string_view name) {
    problem_.set(field::family, ck::family(name));
    family_given_ = true;
    return *this;
  }
  // A target of the tree, such as cpu-avx512 or gfx942; unless given, any.
  ProblemBuilder& gfx_arch(std::string_view target) { return put(field::target, target); }
  // fp32, fp16, bf16, fp8bf16, fp8fp32, ...
  ProblemBuilder& data_type(std::string_view dtype) { return put(field::dtype, dtype); }
  ProblemBuilder& dims(int64_t hdim_q, int64_t hdim_v, int64_t batch, int64_t seqlen_q, int64_t seqlen_k) {
    put(field::hdim_q, detail::at_least("hdim_q", hdim_q, 1));
    put(field::hdim_v, detail::at_least("hdim_v", hdim_v, 1));
    put(field::batch, detail::at_least("batch", batch, 1));
    put(field::seqlen_q, detail::at_least("seqlen_q", seqlen_q, 0));
    return put(field::seqlen_k, detail::at_least("seqlen_k", seqlen_k, 0));
  }
  ProblemBuilder& nheads(int64_t q, int64_t k) {
    put(field::nhead_q, detail::at_least("nhead_q", q, 1));
    return put(field::nhead_k, detail::at_least("nhead_k", k, 1));
  }
  // no_mask, top_left (or causal), bottom_right, window_generic. One kernel serves all but no_mask.
  ProblemBuilder& mask_type(std::string_view name) {
    Value origin;
    put("mask", ck::mask(name, &origin));
    return put("mask_origin", origin);
  }
  // no_bias, elementwise or alibi.
  ProblemBuilder& bias_type(std::string_view name) { return put("bias", ck::bias(name)); }
  ProblemBuilder& lse(bool yes) { return put("lse", yes); }
  ProblemBuilder& dropout(bool yes) { return put("dropout", yes); }
  // no_scale, pertensor, blockscale or kv_blockscale.
  ProblemBuilder& qscale_type(std::string_view name) { return put("qscale", ck::qscale(name)); }
  // none, interleaved or half_rotated.
  ProblemBuilder& rope_type(std::string_view name) { return put("rope", ck::rope(name)); }
  ProblemBuilder& logits_soft_cap(bool yes) { return put("softcap", yes); }
  ProblemBuilder& v_rowmajor(bool yes) { return put("v_layout", yes ? "row" : "column"); }
  ProblemBuilder& group_mode(bool yes) { return put(field::mode, yes ? "group" : "batch"); }
  ProblemBuilder& paged_kv(bool yes) { return put("paged", yes); }
  // Static quantisation of fp8 has no kernels here; qscale_type("pertensor") has.
  ProblemBuilder& fp8_static_quant(bool yes) { return put("fp8_static_quant", yes); }
  ProblemBuilder& skip_min_seqlen_q(bool yes) { return put("skip_min_seqlen_q", yes); }
  ProblemBuilder& sink(bool yes) { return put("sink", yes); }
  // vectorized or linear; vllm (a 2D block table) or sglang (a 1D page table); tokens of a page.
  ProblemBuilder& kv_cache(std::string_view layout, std::string_view lookup, int64_t page_size) {
    put("layout", ck::layout(layout));
    put("lookup", ck::lookup(lookup));
    return put("page_size", detail::at_least("page_size", page_size, 1));
  }
  // Columns to the left and right of the diagonal that a row sees; -1: all. It makes a mask where there was none.
  ProblemBuilder& window(int64_t left, int64_t right) {
    put("window_left", detail::at_least("window_left", left, -1));
    put("window_right", detail::at_least("window_right", right, -1));
    if (left >= 0 || right >= 0) put("mask", "window");
    return *this;
  }
  // The first keys that stay visible whatever the left window says; more than 0 is a sink.
  ProblemBuilder& sink_size(int64_t keys) {
    put("sink_size", detail::at_least("sink_size", keys, 0));
    return keys > 0 ? put("sink", true) : *this;
  }
  ProblemBuilder& max_seqlen(int64_t q, int64_t k) {
    put(field::max_seqlen_q, detail::at_least("max_seqlen_q", q, 0));
    return put(field::max_seqlen_k, detail::at_least("max_seqlen_k", k, 0));
  }
  ProblemBuilder& num_splits(int64_t splits) { return put("num_splits", detail::at_least("num_splits", splits, 1)); }
  // Of the backward: the gradient of the bias, the random bytes stored, the same bits every time.
  ProblemBuilder& bwd_flags(bool dbias, bool store_randval, bool deterministic) {
    put("dbias", dbias);
    put("store_randval", store_randval);
    return put("deterministic", deterministic);
  }

  // Any field by name: min_seqlen_q, rotary_dim, has_block_table, is_gappy, an axis of a family.
  ProblemBuilder& set(Field field, Value value) { return put(field, value); }

  // Throws std::invalid_argument for what is missing or does not go together.
  Problem build() const {
    rules::check_ProblemBuilder(problem_);
    Problem built = problem_;
    rules::finish_ProblemBuilder(built);
    if (family_given_) built.set(field::family, problem_[field::family]);
    return built;
  }

 private:
  ProblemBuilder& put(Field field, Value value) {
    problem_.set(field, value);
    return *this;
  }

  Problem problem_;
  bool family_given_ = false;
};

}  // namespace tilekiln::dispatcher
