// What calls over a KV cache check alike, on top of what all attention calls do.
#pragma once
#include "attention_check.h"
#include "tilekiln/runtime/fmha_kv.h"

namespace tilekiln::fmha {

template <class Args>
class KvCheck : protected AttentionCheck<Args, KvArrays, KvCall> {
 public:
  using Base = AttentionCheck<Args, KvArrays, KvCall>;
  using Base::Base;

 protected:
  using Base::args_, Base::arrays_, Base::axes_, Base::axes_kv_, Base::bhsd_, Base::call_, Base::group_, Base::problem_,
      Base::sk_, Base::sq_;
  using typename Base::ll;

  tilekiln_status flag(const char* name, int32_t value) const {
    if (value == 0 || value == 1) return TILEKILN_OK;
    return fail_argument(name, "was %d, must be 0 or 1", value);
  }

  tilekiln_status read_arrays() {
    TILEKILN_TRY(this->required("q", args_.q, &arrays_.q));
    TILEKILN_TRY(this->required("k", args_.k, &arrays_.k));
    TILEKILN_TRY(this->required("v", args_.v, &arrays_.v));
    TILEKILN_TRY(this->required("out", args_.out, &arrays_.out));
#define TILEKILN_IF_GIVEN(name)                                                                \
  if constexpr (requires { args_.name; }) {                                                    \
    if (args_.name != nullptr) TILEKILN_TRY(this->given(#name, args_.name, &arrays_.name));    \
  }
    TILEKILN_IF_GIVEN(lse);
    TILEKILN_IF_GIVEN(randval);
    TILEKILN_IF_GIVEN(bias);
    TILEKILN_IF_GIVEN(alibi_slopes);
    TILEKILN_IF_GIVEN(sink);
    TILEKILN_IF_GIVEN(q_descale);
    TILEKILN_IF_GIVEN(k_descale);
    TILEKILN_IF_GIVEN(v_descale);
    TILEKILN_IF_GIVEN(out_scale);
    TILEKILN_IF_GIVEN(kv_block_descale);
    TILEKILN_IF_GIVEN(seqstart_q);
    TILEKILN_IF_GIVEN(seqstart_k);
    TILEKILN_IF_GIVEN(seqlen_q);
    TILEKILN_IF_GIVEN(seqlen_k);
    TILEKILN_IF_GIVEN(cu_seqlens_q);
    TILEKILN_IF_GIVEN(cu_seqlens_k);
    TILEKILN_IF_GIVEN(block_table);
    TILEKILN_IF_GIVEN(cache_batch_idx);
    TILEKILN_IF_GIVEN(cache_leftpad);
    TILEKILN_IF_GIVEN(kv_indptr);
    TILEKILN_IF_GIVEN(kv_page_indices);
    TILEKILN_IF_GIVEN(kv_last_page_lens);
#undef TILEKILN_IF_GIVEN
    return TILEKILN_OK;
  }

  // q, k, v and out of one dtype.
  tilekiln_status one_dtype() {
    const Array& q = arrays_.q;
    if (q.dtype != TILEKILN_FP32 && q.dtype != TILEKILN_FP16 && q.dtype != TILEKILN_BF16) {
      TILEKILN_TRY(check_dtype(q, TILEKILN_FP8, "fp32, fp16, bf16 or fp8"));
    }
    for (const Array* array : {&arrays_.k, &arrays_.v, &arrays_.out}) TILEKILN_TRY(this->dtype_like(*array, q));
    problem_.dtype = q.dtype == TILEKILN_FP32   ? KvDtype::fp32
                     : q.dtype == TILEKILN_FP16 ? KvDtype::fp16
                     : q.dtype == TILEKILN_BF16 ? KvDtype::bf16
                                                : KvDtype::fp8;
    return TILEKILN_OK;
  }

  // A linear cache; contiguous or, with `paged`, a pool of pages.
  tilekiln_status linear_cache(bool paged) {
    const Array &q = arrays_.q, &k = arrays_.k, &v = arrays_.v, &out = arrays_.out;
    TILEKILN_TRY(this->mode());
    TILEKILN_TRY(check_ndim(out, q.ndim, this->form_of_q()));
    const int ndim = paged ? 4 : q.ndim;
    axes_kv_ = this->axes_of(ndim);
    const char* const form = paged ? (bhsd_ ? "(pages, nhead, page_size, hdim) with block_table"
                                            : "(pages, page_size, nhead, hdim) with block_table")
                                   : this->form_of_q();
    TILEKILN_TRY(check_ndim(k, ndim, form));
    TILEKILN_TRY(check_ndim(v, ndim, form));
    TILEKILN_TRY(one_dtype());
    TILEKILN_TRY(this->heads(k, v));
    TILEKILN_TRY(tokens(k, v, paged));
    TILEKILN_TRY(this->queries());
    for (const Array* array : {&q, &k, &v, &out}) TILEKILN_TRY(check_contiguous(*array));
    this->set_queries();
    problem_.k_row = k.stride[axes_kv_.seq];
    problem_.k_head = k.stride[axes_kv_.head];
    problem_.v_row = v.stride[axes_kv_.seq];
    problem_.v_head = v.stride[axes_kv_.head];
    if (paged) {
      set_pages(KvLayout::linear, k.stride[0], v.stride[0]);
    } else {
      call_.steps.k = group_ ? problem_.k_row : k.stride[0];
      call_.steps.v = group_ ? problem_.v_row : v.stride[0];
    }
    return TILEKILN_OK;
  }

  // The dimensions of a linear cache that are not heads.
  tilekiln_status tokens(const Array& k, const Array& v, bool paged) {
    const char* const name = paged ? "page size" : group_ ? "total length" : "seqlen";
    const i64 length = k.shape[axes_kv_.seq];
    char why[48];
    snprintf(why, sizeof(why), "the %s of k", name);
    TILEKILN_TRY(check_length(v, axes_kv_.seq, name, length, why));
    if (paged) {
      TILEKILN_TRY(check_length(v, 0, "page count", k.shape[0], "the page count of k"));
      TILEKILN_TRY(page_size(length));
      cache_ = {true, k.shape[0], length, 0, 0};
    } else {
      if (!group_) TILEKILN_TRY(check_length(v, 0, "batch", k.shape[0], "the batch of k"));
      if (length > max_seqlen && !group_)
        return fail_argument("k", "seqlen was %lld, must be at most %d", static_cast<ll>(length), max_seqlen);
      cache_ = {false, 0, 0, group_ ? 0 : k.shape[0], length};
    }
    return TILEKILN_OK;
  }

  tilekiln_status page_size(i64 size) const {
    if (size >= 1 && size <= max_seqlen) return TILEKILN_OK;
    return fail_argument("k", "page size was %lld, must be from 1 to %d", static_cast<ll>(size), max_seqlen);
  }

  void set_pages(KvLayout layout, i64 k_page, i64 v_page) {
    problem_.pages.page_size = static_cast<int>(cache_.page_size);
    problem_.pages.layout = layout;
    problem_.pages.k_page = k_page;
    problem_.pages.v_page = v_page;
    call_.query.sizes[size_cache_bytes] = bytes_between(cache_.pages, k_page, dtype_bytes(arrays_.k.dtype));
    call_.query.sizes[size_page_tokens] = cache_.page_size;
  }

  // One fp32 element, of an fp8 array named `of`.
  tilekiln_status scale(const Array& array, bool fp8, const char* of, const float** value) {
    if (!array.given()) return TILEKILN_OK;
    if (!fp8) return fail_argument(array.name, "was given, must be null unless %s is fp8", of);
    TILEKILN_TRY(check_dtype(array, TILEKILN_FP32, "fp32"));
    for (int i = 0; i < array.ndim; ++i) {
      if (array.shape[i] != 1)
        return fail_argument(array.name, "dimension %d was %lld long, must have one element", i,
                             static_cast<ll>(array.shape[i]));
    }
    *value = reinterpret_cast<const float*>(array.data);
    return TILEKILN_OK;
  }

  tilekiln_status scales() {
    const bool fp8_q = arrays_.q.dtype == TILEKILN_FP8, fp8_k = arrays_.k.dtype == TILEKILN_FP8;
    TILEKILN_TRY(scale(arrays_.q_descale, fp8_q, "q", &problem_.q_descale));
    TILEKILN_TRY(scale(arrays_.k_descale, fp8_k, "k", &problem_.k_descale));
    TILEKILN_TRY(scale(arrays_.v_descale, fp8_k, "v", &problem_.v_descale));
    TILEKILN_TRY(scale(arrays_.out_scale, arrays_.out.dtype == TILEKILN_FP8, "out", &call_.out_scale));
    return args_.stream == nullptr ? check_kv_scales(call_) : TILEKILN_OK;
  }

  // Biases have the dtype of out, fp32 when that is fp8.
  tilekiln_status score_biases() {
    this->cached_ = true;
    if (arrays_.bias.given() && arrays_.out.dtype == TILEKILN_FP8) {
      TILEKILN_TRY(check_dtype(arrays_.bias, TILEKILN_FP32, "fp32 when out is fp8"));
    } else if (arrays_.bias.given()) {
      TILEKILN_TRY(this->dtype_like(arrays_.bias, arrays_.out));
    }
    return this->biases();
  }

  // What the engine and the signatures ask.
  void features() {
    FwdFeatures& features = problem_.features;
    features.bias = arrays_.bias.given() ? Bias::elementwise : arrays_.alibi_slopes.given() ? Bias::alibi : Bias::none;
    features.mask = args_.causal != 0 || args_.window_left >= 0 || args_.window_right >= 0;
    features.softcap = args_.softcap > 0;
    // Sink columns change nothing when every key to the left is visible anyway.
    features.sink = arrays_.sink.given() || (args_.sink_size > 0 && args_.window_left >= 0);
    features.lse = arrays_.lse.given();
    if constexpr (requires { args_.dropout_p; }) features.dropout = args_.dropout_p > 0;
    features.qscale = arrays_.k.dtype == TILEKILN_FP8 ? Qscale::pertensor : Qscale::none;
    problem_.out_scale = 1;
  }

  Cache cache_ = {};
};

}  // namespace tilekiln::fmha
