// The arguments of fmha_batch_prefill.
#include "kv_check.h"

namespace tilekiln::fmha {
namespace {

class PrefillCheck : KvCheck<tilekiln_fmha_batch_prefill_args> {
 public:
  using KvCheck::KvCheck;

  tilekiln_status run() {
    TILEKILN_TRY(scalars());
    TILEKILN_TRY(read_arrays());
    TILEKILN_TRY(dtypes());
    TILEKILN_TRY(pool());
    features();
    TILEKILN_TRY(check_prefill_keys(arrays_, cache_, sq_, &call_));
    TILEKILN_TRY(lse());
    one_head_bias();
    TILEKILN_TRY(score_biases());
    TILEKILN_TRY(sink());
    TILEKILN_TRY(block_descale());
    TILEKILN_TRY(scales());
    TILEKILN_TRY(randval());
    TILEKILN_TRY(overlaps({&arrays_.out, &arrays_.lse, &arrays_.randval}));
    TILEKILN_TRY(where_to_run());
    set_query();
    set_batch_prefill_signature(vectorized_, arrays_.block_table.given(), arrays_.kv_block_descale.given(), &call_);
    return TILEKILN_OK;
  }

 private:
  tilekiln_status dtypes() {
    const Array &q = arrays_.q, &k = arrays_.k, &out = arrays_.out;
    if (q.dtype != TILEKILN_FP16 && q.dtype != TILEKILN_BF16)
      TILEKILN_TRY(check_dtype(q, TILEKILN_FP8, "fp16, bf16 or fp8"));
    if (q.dtype == TILEKILN_BF16 && k.dtype != TILEKILN_BF16) {
      TILEKILN_TRY(check_dtype(k, TILEKILN_FP8, "bf16, the dtype of q, or fp8"));
    } else {
      TILEKILN_TRY(dtype_like(k, q));
    }
    TILEKILN_TRY(dtype_like(arrays_.v, k));
    if (q.dtype == TILEKILN_FP8) {
      TILEKILN_TRY(check_dtype(out, TILEKILN_BF16, "bf16 when q is fp8"));
    } else {
      TILEKILN_TRY(dtype_like(out, q));
    }
    problem_.dtype = q.dtype == TILEKILN_FP8    ? KvDtype::fp8bf16
                     : q.dtype == TILEKILN_FP16 ? KvDtype::fp16
                     : k.dtype == TILEKILN_BF16 ? KvDtype::bf16
                                                : KvDtype::bf16_fp8;
    return TILEKILN_OK;
  }

  // The pool as (pages, page_size, nhead, hdim), however it lies.
  tilekiln_status pool() {
    const Array &q = arrays_.q, &k = arrays_.k, &v = arrays_.v, &out = arrays_.out;
    TILEKILN_TRY(check_ndim(q, 3, "(total_q, nhead, hdim)"));
    TILEKILN_TRY(mode());
    TILEKILN_TRY(check_ndim(out, 3, form_of_q()));
    if (k.ndim < 3) {
      return fail_argument(
          "k",
          "had %d dimensions, must have 4, (pages, page_size, nhead, hdim), 5 (vectorized) or 3 (pages of one key)",
          k.ndim);
    }
    TILEKILN_TRY(check_ndim(v, k.ndim, "as k"));
    vectorized_ = k.ndim == 5;
    if (vectorized_) TILEKILN_TRY(check_vectors());
    const Array linear_k = as_linear(k, true), linear_v = as_linear(v, false);
    axes_kv_ = {1, 2, 3};
    TILEKILN_TRY(heads(linear_k, linear_v));
    TILEKILN_TRY(tokens(linear_k, linear_v, true));
    const i64 size = cache_.page_size;
    if ((size & (size - 1)) != 0)
      return fail_argument("k", "page size was %lld, must be a power of two", static_cast<ll>(size));
    TILEKILN_TRY(queries());
    for (const Array* array : {&q, &k, &v, &out}) TILEKILN_TRY(check_contiguous(*array));
    set_queries();
    problem_.k_head = linear_k.stride[2];
    problem_.v_head = linear_v.stride[2];
    if (vectorized_) {
      problem_.pages.k_chunk = k.stride[2];
      problem_.pages.v_chunk = v.stride[2];
    } else {
      problem_.k_row = linear_k.stride[1];
      problem_.v_row = linear_v.stride[1];
    }
    set_pages(vectorized_ ? KvLayout::vectorized : KvLayout::linear, k.stride[0], v.stride[0]);
    return TILEKILN_OK;
  }

  // The shapes that a vectorized cache must have: K (pages, nhead, hdim / vec, page_size, vec), V (pages, nhead,
  // page_size / vec, hdim, vec).
  tilekiln_status check_vectors() const {
    const Array &k = arrays_.k, &v = arrays_.v;
    const i64 vec = 16 / dtype_bytes(k.dtype);
    for (const Array* array : {&k, &v}) {
      TILEKILN_TRY(check_length(*array, 4, "last dimension", vec, "the elements in 16 bytes"));
      if (array->shape[3] > 1 && !array->empty() && array->stride[3] != vec) {
        return fail_argument(array->name,
                             "the stride of dimension 3 was %lld, must be %lld: its vectors lie side by side",
                             static_cast<ll>(array->stride[3]), static_cast<ll>(vec));
      }
    }
    const i64 hdim = arrays_.q.shape[2], page = k.shape[3];
    if (hdim % vec != 0) {
      return fail_argument("q", "hdim was %lld, must be a multiple of %lld with a vectorized cache",
                           static_cast<ll>(hdim), static_cast<ll>(vec));
    }
    if (page % vec != 0) {
      return fail_argument("k", "page size was %lld, must be a multiple of %lld in a vectorized cache",
                           static_cast<ll>(page), static_cast<ll>(vec));
    }
    return TILEKILN_OK;
  }

  Array as_linear(const Array& array, bool keys) const {
    Array linear = array;
    const auto set = [&](int at, i64 shape, i64 stride) { linear.shape[at] = shape, linear.stride[at] = stride; };
    linear.ndim = 4;
    if (array.ndim == 3) {  // pages of one key
      set(3, array.shape[2], array.stride[2]);
      set(2, array.shape[1], array.stride[1]);
      set(1, 1, 0);
    } else if (array.ndim == 5) {
      set(1, keys ? array.shape[3] : array.shape[2] * array.shape[4], 0);
      set(2, array.shape[1], array.stride[1]);
      set(3, keys ? array.shape[2] * array.shape[4] : array.shape[3], 1);
    }
    return linear;
  }

  // (total_q, keys) is one bias for every head.
  void one_head_bias() {
    Array& bias = arrays_.bias;
    if (!bias.given() || bias.ndim != 2) return;
    bias.ndim = 3;
    for (int i = 2; i > 0; --i) bias.shape[i] = bias.shape[i - 1], bias.stride[i] = bias.stride[i - 1];
    bias.shape[0] = 1;
    bias.stride[0] = 0;
  }

  tilekiln_status block_descale() {
    const Array& scale = arrays_.kv_block_descale;
    if (!scale.given()) return TILEKILN_OK;
    if (arrays_.k.dtype != TILEKILN_FP8) return fail_argument(scale.name, "was given, must be null unless k is fp8");
    for (const Array* array : {&arrays_.k_descale, &arrays_.v_descale}) {
      if (array->given())
        return fail_argument(array->name, "was given with kv_block_descale, must be alone: both scale the cache");
    }
    TILEKILN_TRY(check_dtype(scale, TILEKILN_FP32, "fp32"));
    TILEKILN_TRY(check_ndim(scale, 3, "(pages, nhead_k, 2)"));
    TILEKILN_TRY(check_length(scale, 0, "page count", cache_.pages, "the page count of k"));
    TILEKILN_TRY(check_length(scale, 1, "nhead", problem_.nhead_k, "the nhead of k"));
    TILEKILN_TRY(check_length(scale, 2, "last dimension", 2, "the scales of k and v"));
    constexpr int block = 128;  // as the rule kv_blockscale_of_large_pages says
    if (cache_.page_size % block != 0) {
      return fail_argument(scale.name, "was given with pages of %lld keys, must be of pages of a multiple of %d",
                           static_cast<ll>(cache_.page_size), block);
    }
    problem_.k_page_scale = reinterpret_cast<const float*>(scale.data);
    problem_.v_page_scale = problem_.k_page_scale + scale.stride[2];
    problem_.page_scale_page = scale.stride[0];
    problem_.page_scale_head = scale.stride[1];
    return TILEKILN_OK;
  }

  bool vectorized_ = false;
};

}  // namespace

tilekiln_status check_batch_prefill(const tilekiln_fmha_batch_prefill_args& args, KvCall* call) {
  // Only the size may be read before it is known to be right.
  if (args.size != sizeof(args)) {
    return fail_argument("args",
                         "size was %zu, must be %zu, sizeof(tilekiln_fmha_batch_prefill_args) of ABI %d: start from "
                         "tilekiln_fmha_batch_prefill_defaults()",
                         args.size, sizeof(args), TILEKILN_ABI_VERSION);
  }
  call->family = KvFamily::batch_prefill;
  return PrefillCheck(args, call).run();
}

}  // namespace tilekiln::fmha
