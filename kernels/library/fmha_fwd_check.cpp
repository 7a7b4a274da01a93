// The arguments of fmha_fwd, all checked before anything is run: the only place, for every language.
#include <math.h>

#include "attention_check.h"
#include "tilekiln/runtime/fmha_fwd.h"

namespace tilekiln::fmha {
namespace {

class Check : AttentionCheck<tilekiln_fmha_fwd_args, FwdArrays, FwdCall> {
 public:
  using AttentionCheck::AttentionCheck;

  tilekiln_status run() {
    TILEKILN_TRY(scalars());
    TILEKILN_TRY(at_least("min_seqlen_q", args_.min_seqlen_q, 0, "0 (off) or more"));
    call_.min_seqlen_q = args_.min_seqlen_q;
    TILEKILN_TRY(read_arrays());
    TILEKILN_TRY(qkv([&] { return dtypes(); }));
    TILEKILN_TRY(scale_kinds());
    set_fwd_signature(args_, qscale_, arrays_.q.dtype, arrays_.out.dtype, &call_);
    TILEKILN_TRY(sequences());
    TILEKILN_TRY(lse());
    TILEKILN_TRY(biases());
    TILEKILN_TRY(sink());
    TILEKILN_TRY(scales());
    TILEKILN_TRY(randval());
    TILEKILN_TRY(overlaps({&arrays_.out, &arrays_.lse, &arrays_.randval}));
    TILEKILN_TRY(where_to_run());
    set_query();
    return TILEKILN_OK;
  }

 private:
  tilekiln_status read_arrays() {
    TILEKILN_TRY(required("q", args_.q, &arrays_.q));
    TILEKILN_TRY(required("k", args_.k, &arrays_.k));
    TILEKILN_TRY(required("v", args_.v, &arrays_.v));
    TILEKILN_TRY(required("out", args_.out, &arrays_.out));
    TILEKILN_OPTIONAL(lse);
    TILEKILN_OPTIONAL(bias);
    TILEKILN_OPTIONAL(alibi_slopes);
    TILEKILN_OPTIONAL(sink);
    TILEKILN_OPTIONAL(q_descale);
    TILEKILN_OPTIONAL(k_descale);
    TILEKILN_OPTIONAL(v_descale);
    TILEKILN_OPTIONAL(block_scale_seqstart_q);
    TILEKILN_OPTIONAL(block_scale_seqstart_k);
    TILEKILN_TRY(read_index_arrays());
    TILEKILN_OPTIONAL(randval);
#undef TILEKILN_OPTIONAL
    return TILEKILN_OK;
  }

  tilekiln_status dtypes() {
    const Array &q = arrays_.q, &out = arrays_.out;
    if (q.dtype != TILEKILN_FP32 && q.dtype != TILEKILN_FP16 && q.dtype != TILEKILN_BF16) {
      TILEKILN_TRY(check_dtype(q, TILEKILN_FP8, "fp32, fp16, bf16 or fp8"));
    }
    TILEKILN_TRY(dtype_like(arrays_.k, q));
    TILEKILN_TRY(dtype_like(arrays_.v, q));
    if (q.dtype != TILEKILN_FP8) {
      TILEKILN_TRY(dtype_like(out, q));
    } else if (out.dtype != TILEKILN_BF16) {
      TILEKILN_TRY(check_dtype(out, TILEKILN_FP32, "bf16 or fp32 when q is fp8"));
    }
    return TILEKILN_OK;
  }

  tilekiln_status sequences() {
    const bool group_scales = group_ && qscale_ == Qscale::blockscale;
    const ScaleBlocks blocks = {group_scales ? arrays_.q_descale.shape[1] : 0,
                                group_scales ? arrays_.k_descale.shape[1] : 0};
    return check_sequences(arrays_, group_, sq_, sk_, group_scales ? &blocks : nullptr, &call_);
  }

  static bool one_element(const Array& array) {
    for (int i = 0; i < array.ndim; ++i) {
      if (array.shape[i] != 1) return false;
    }
    return true;
  }

  // Whether there are scales, and of which kind; their dimensions, but not yet their lengths.
  tilekiln_status scale_kinds() {
    const Array* const all[] = {&arrays_.q_descale, &arrays_.k_descale, &arrays_.v_descale};
    const char* const names[] = {"q_descale", "k_descale", "v_descale"};
    int count = 0, single = 0;
    for (const Array* array : all) {
      count += array->given();
      single += array->given() && one_element(*array);
    }
    if (count == 0) return TILEKILN_OK;
    for (int i = 0; i < 3; ++i) {
      if (!all[i]->given())
        return fail_argument(names[i], "was null, must be given: q_descale, k_descale and v_descale go together");
      TILEKILN_TRY(check_dtype(*all[i], TILEKILN_FP32, "fp32"));
    }
    qscale_ = single == 3 ? Qscale::pertensor : Qscale::blockscale;
    if (qscale_ == Qscale::pertensor) return TILEKILN_OK;
    const int ndim = group_ ? 2 : 3;
    for (const Array* array : all) {
      if (array->ndim == ndim) continue;
      return fail_argument(
          array->name, "had %d dimensions, must have one element (pertensor, all three) or be (%snhead, blocks of %d)",
          array->ndim, group_ ? "" : "batch, ", scale_block);
    }
    return TILEKILN_OK;
  }

  tilekiln_status scales() {
    if (qscale_ == Qscale::none) return TILEKILN_OK;
    problem_.q_descale = reinterpret_cast<const float*>(arrays_.q_descale.data);
    problem_.k_descale = reinterpret_cast<const float*>(arrays_.k_descale.data);
    problem_.v_descale = reinterpret_cast<const float*>(arrays_.v_descale.data);
    if (qscale_ == Qscale::pertensor) return args_.stream == nullptr ? check_fwd_descales(problem_) : TILEKILN_OK;
    problem_.block_scale_q = problem_.block_scale_k = scale_block;
    const int64_t blocks_k = group_ ? arrays_.k_descale.shape[1] : blocks(sk_);
    TILEKILN_TRY(block_scale(arrays_.q_descale, problem_.nhead_q, "the nhead of q",
                             group_ ? arrays_.q_descale.shape[1] : blocks(sq_), "one per 128 queries",
                             &problem_.q_descale_head, &call_.steps.q_descale));
    TILEKILN_TRY(block_scale(arrays_.k_descale, problem_.nhead_k, "the nhead of k", blocks_k, "one per 128 keys",
                             &problem_.k_descale_head, &call_.steps.k_descale));
    return block_scale(arrays_.v_descale, problem_.nhead_k, "the nhead of k", blocks_k,
                       group_ ? "as k_descale" : "one per 128 keys", &problem_.v_descale_head, &call_.steps.v_descale);
  }

  static int64_t blocks(int64_t length) { return (length + scale_block - 1) / scale_block; }

  tilekiln_status block_scale(const Array& array, int nhead, const char* nhead_name, int64_t count,
                              const char* count_name, i64* head, i64* step) {
    if (!group_) TILEKILN_TRY(check_length(array, 0, "batch", call_.batch, "the batch of q"));
    TILEKILN_TRY(check_length(array, array.ndim - 2, "nhead", nhead, nhead_name));
    TILEKILN_TRY(check_length(array, array.ndim - 1, "block count", count, count_name));
    TILEKILN_TRY(check_contiguous(array));
    *head = array.stride[array.ndim - 2];
    *step = group_ ? 1 : array.stride[0];
    return TILEKILN_OK;
  }

  Qscale qscale_ = Qscale::none;
};

}  // namespace

tilekiln_status check_fwd_descales(const FwdProblem& problem) {
  const float* const values[] = {problem.q_descale, problem.k_descale, problem.v_descale};
  const char* const names[] = {"q_descale", "k_descale", "v_descale"};
  for (int i = 0; i < 3; ++i) {
    if (!isfinite(*values[i]))
      return fail_argument(names[i], "was %g, must be finite", static_cast<double>(*values[i]));
  }
  return TILEKILN_OK;
}

tilekiln_status check_fwd(const tilekiln_fmha_fwd_args& args, FwdCall* call) {
  // Only the size may be read before it is known to be right.
  if (args.size != sizeof(args)) {
    return fail_argument(
        "args",
        "size was %zu, must be %zu, sizeof(tilekiln_fmha_fwd_args) of ABI %d: start from tilekiln_fmha_fwd_defaults()",
        args.size, sizeof(args), TILEKILN_ABI_VERSION);
  }
  return Check(args, call).run();
}

}  // namespace tilekiln::fmha
