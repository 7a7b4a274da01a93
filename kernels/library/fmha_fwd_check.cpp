// The arguments of fmha_fwd, all checked before anything is run: the only place, for every language.
#include <math.h>
#include <stdio.h>

#include <initializer_list>

#include "tilekiln/runtime/environment.h"
#include "tilekiln/runtime/fmha_fwd.h"
#include "tilekiln/runtime/stream.h"

namespace tilekiln::fmha {
namespace {

using ll = long long;

// Where the dimensions of q, k, v and out lie.
struct Axes { int seq, head, hdim; };

class Check {
 public:
  Check(const tilekiln_fmha_fwd_args& args, FwdCall* call) : args_(args), call_(*call), problem_(call->problem) {}

  tilekiln_status run() {
    TILEKILN_TRY(check_fwd_scalars(args_, &call_));
    TILEKILN_TRY(read_arrays());
    TILEKILN_TRY(qkv());
    TILEKILN_TRY(scale_kinds());
    set_fwd_signature(args_, qscale_, arrays_.q.dtype, arrays_.out.dtype, &call_);
    TILEKILN_TRY(check_fwd_sequences(arrays_, sq_, sk_, qscale_ == Qscale::blockscale, &call_));
    TILEKILN_TRY(lse());
    TILEKILN_TRY(biases());
    TILEKILN_TRY(sink());
    TILEKILN_TRY(scales());
    TILEKILN_TRY(randval());
    TILEKILN_TRY(overlaps());
    TILEKILN_TRY(where_to_run());
    call_.query.hdim_q = problem_.hdim_q;
    call_.query.hdim_v = problem_.hdim_v;
    call_.query.seqlen_q = call_.seqlen_q;
    return TILEKILN_OK;
  }

 private:
  tilekiln_status read_arrays() {
    TILEKILN_TRY(required("q", args_.q, &arrays_.q));
    TILEKILN_TRY(required("k", args_.k, &arrays_.k));
    TILEKILN_TRY(required("v", args_.v, &arrays_.v));
    TILEKILN_TRY(required("out", args_.out, &arrays_.out));
#define TILEKILN_OPTIONAL(name) \
  if (args_.name != nullptr) TILEKILN_TRY(given(#name, args_.name, &arrays_.name))
    TILEKILN_OPTIONAL(lse);
    TILEKILN_OPTIONAL(bias);
    TILEKILN_OPTIONAL(alibi_slopes);
    TILEKILN_OPTIONAL(sink);
    TILEKILN_OPTIONAL(q_descale);
    TILEKILN_OPTIONAL(k_descale);
    TILEKILN_OPTIONAL(v_descale);
    TILEKILN_OPTIONAL(block_scale_seqstart_q);
    TILEKILN_OPTIONAL(block_scale_seqstart_k);
    TILEKILN_OPTIONAL(seqstart_q);
    TILEKILN_OPTIONAL(seqstart_k);
    TILEKILN_OPTIONAL(seqlen_q);
    TILEKILN_OPTIONAL(seqlen_k);
    TILEKILN_OPTIONAL(cu_seqlens_q);
    TILEKILN_OPTIONAL(cu_seqlens_k);
    TILEKILN_OPTIONAL(randval);
#undef TILEKILN_OPTIONAL
    return TILEKILN_OK;
  }

  tilekiln_status required(const char* name, const tilekiln_tensor* tensor, Array* array) {
    if (tensor == nullptr) return fail_argument(name, "was null, must be given");
    return given(name, tensor, array);
  }

  tilekiln_status given(const char* name, const tilekiln_tensor* tensor, Array* array) {
    TILEKILN_TRY(check_array(name, *tensor, array));
    given_[count_++] = array;
    return TILEKILN_OK;
  }

  // "fp16, the dtype of q"
  static tilekiln_status dtype_like(const Array& array, const Array& like) {
    if (array.dtype == like.dtype) return TILEKILN_OK;
    char text[64], buffer[32];
    snprintf(text, sizeof(text), "%s, the dtype of %s", dtype_name(like.dtype, buffer), like.name);
    return check_dtype(array, like.dtype, text);
  }

  tilekiln_status qkv() {
    const Array &q = arrays_.q, &k = arrays_.k, &v = arrays_.v, &out = arrays_.out;
    if (q.ndim != 3 && q.ndim != 4) {
      return fail_argument(
          "q", "had %d dimensions, must have 4, (batch, seqlen, nhead, hdim), or 3, (total, nhead, hdim)", q.ndim);
    }
    group_ = problem_.features.group = q.ndim == 3;
    const bool bhsd = args_.layout == TILEKILN_BHSD;
    axes_ = {q.ndim - (bhsd ? 2 : 3), q.ndim - (bhsd ? 3 : 2), q.ndim - 1};
    const char* const form = group_
                                 ? (bhsd ? "(nhead, total, hdim) as q" : "(total, nhead, hdim) as q")
                                 : (bhsd ? "(batch, nhead, seqlen, hdim) as q" : "(batch, seqlen, nhead, hdim) as q");
    for (const Array* array : {&k, &v, &out}) TILEKILN_TRY(check_ndim(*array, q.ndim, form));

    if (q.dtype != TILEKILN_FP32 && q.dtype != TILEKILN_FP16 && q.dtype != TILEKILN_BF16) {
      TILEKILN_TRY(check_dtype(q, TILEKILN_FP8, "fp32, fp16, bf16 or fp8"));
    }
    TILEKILN_TRY(dtype_like(k, q));
    TILEKILN_TRY(dtype_like(v, q));
    if (q.dtype != TILEKILN_FP8) {
      TILEKILN_TRY(dtype_like(out, q));
    } else if (out.dtype != TILEKILN_BF16) {
      TILEKILN_TRY(check_dtype(out, TILEKILN_FP32, "bf16 or fp32 when q is fp8"));
    }

    const int64_t hdim_q = q.shape[axes_.hdim], hdim_v = v.shape[axes_.hdim];
    if (hdim_q < 1 || hdim_q > 256)
      return fail_argument("q", "hdim was %lld, must be from 1 to 256", static_cast<ll>(hdim_q));
    if (hdim_v < 1 || hdim_v > 256)
      return fail_argument("v", "hdim was %lld, must be from 1 to 256", static_cast<ll>(hdim_v));
    TILEKILN_TRY(check_length(k, axes_.hdim, "hdim", hdim_q, "the hdim of q"));
    TILEKILN_TRY(check_length(out, axes_.hdim, "hdim", hdim_v, "the hdim of v"));

    const int64_t nhead_q = q.shape[axes_.head], nhead_k = k.shape[axes_.head];
    if (nhead_q < 1 || nhead_q > INT32_MAX)
      return fail_argument("q", "nhead was %lld, must be from 1 to 2147483647", static_cast<ll>(nhead_q));
    if (nhead_k < 1 || nhead_q % nhead_k != 0) {
      return fail_argument("k", "nhead was %lld, must divide %lld, the nhead of q", static_cast<ll>(nhead_k),
                           static_cast<ll>(nhead_q));
    }
    TILEKILN_TRY(check_length(v, axes_.head, "nhead", nhead_k, "the nhead of k"));
    TILEKILN_TRY(check_length(out, axes_.head, "nhead", nhead_q, "the nhead of q"));

    sq_ = q.shape[axes_.seq];
    sk_ = k.shape[axes_.seq];
    TILEKILN_TRY(check_length(v, axes_.seq, group_ ? "total length" : "seqlen", sk_,
                              group_ ? "the total length of k" : "the seqlen of k"));
    TILEKILN_TRY(check_length(out, axes_.seq, group_ ? "total length" : "seqlen", sq_,
                              group_ ? "the total length of q" : "the seqlen of q"));
    if (!group_) {
      const int64_t batch = q.shape[0];
      if (batch > INT32_MAX)
        return fail_argument("q", "batch was %lld, must be at most 2147483647", static_cast<ll>(batch));
      for (const Array* array : {&k, &v, &out}) TILEKILN_TRY(check_length(*array, 0, "batch", batch, "the batch of q"));
      if (sq_ > max_seqlen)
        return fail_argument("q", "seqlen was %lld, must be at most %d", static_cast<ll>(sq_), max_seqlen);
      if (sk_ > max_seqlen)
        return fail_argument("k", "seqlen was %lld, must be at most %d", static_cast<ll>(sk_), max_seqlen);
      call_.batch = static_cast<int>(batch);
    }
    for (const Array* array : {&q, &k, &v, &out}) TILEKILN_TRY(check_contiguous(*array));

    problem_.hdim_q = static_cast<int>(hdim_q);
    problem_.hdim_v = static_cast<int>(hdim_v);
    problem_.nhead_q = static_cast<int>(nhead_q);
    problem_.nhead_k = static_cast<int>(nhead_k);
    if (args_.softmax_scale == nullptr) problem_.softmax_scale = 1 / sqrtf(static_cast<float>(hdim_q));
    problem_.q = q.data;
    problem_.k = k.data;
    problem_.v = v.data;
    problem_.out = out.data;
    steps_of(q, &problem_.q_row, &problem_.q_head, &call_.steps.q);
    steps_of(k, &problem_.k_row, &problem_.k_head, &call_.steps.k);
    steps_of(v, &problem_.v_row, &problem_.v_head, &call_.steps.v);
    steps_of(out, &problem_.out_row, &problem_.out_head, &call_.steps.out);
    return TILEKILN_OK;
  }

  void steps_of(const Array& array, i64* row, i64* head, i64* sequence) const {
    *row = array.stride[axes_.seq];
    *head = array.stride[axes_.head];
    *sequence = group_ ? *row : array.stride[0];
  }

  tilekiln_status lse() {
    const Array& lse = arrays_.lse;
    if (!lse.given()) return TILEKILN_OK;
    TILEKILN_TRY(check_dtype(lse, TILEKILN_FP32, "fp32"));
    TILEKILN_TRY(check_ndim(lse, group_ ? 2 : 3, group_ ? "(nhead_q, total_q)" : "(batch, nhead_q, seqlen_q)"));
    if (!group_) TILEKILN_TRY(check_length(lse, 0, "batch", call_.batch, "the batch of q"));
    TILEKILN_TRY(check_length(lse, lse.ndim - 2, "nhead", problem_.nhead_q, "the nhead of q"));
    TILEKILN_TRY(
        check_length(lse, lse.ndim - 1, "last dimension", sq_, group_ ? "the total length of q" : "the seqlen of q"));
    TILEKILN_TRY(check_contiguous(lse));
    problem_.lse = reinterpret_cast<float*>(lse.data);
    problem_.lse_head = lse.stride[lse.ndim - 2];
    call_.steps.lse = group_ ? 1 : lse.stride[0];
    return TILEKILN_OK;
  }

  // An array over (batch, nhead, seqlen_q, seqlen_k); `one`: the first two lengths may be 1, which repeats them.
  tilekiln_status scores_shape(const Array& array, bool one) {
    TILEKILN_TRY(check_ndim(array, group_ ? 3 : 4,
                            group_ ? "(nhead_q, total_q, max_seqlen_k)" : "(batch, nhead_q, seqlen_q, seqlen_k)"));
    const int head = array.ndim - 3, row = array.ndim - 2, key = array.ndim - 1;
    const char* const or_one = one ? ", or 1" : "";
    char text[48];
    if (!group_ && !(one && array.shape[0] == 1)) {
      snprintf(text, sizeof(text), "the batch of q%s", or_one);
      TILEKILN_TRY(check_length(array, 0, "batch", call_.batch, text));
    }
    if (!(one && array.shape[head] == 1)) {
      snprintf(text, sizeof(text), "the nhead of q%s", or_one);
      TILEKILN_TRY(check_length(array, head, "nhead", problem_.nhead_q, text));
    }
    TILEKILN_TRY(check_length(array, row, "row count", sq_, group_ ? "the total length of q" : "the seqlen of q"));
    if (!group_) {
      TILEKILN_TRY(check_length(array, key, "last dimension", sk_, "the seqlen of k"));
    } else if (array.shape[key] < call_.seqlen_k) {
      return fail_argument(array.name, "last dimension was %lld, must be at least %d, the longest seqlen_k",
                           static_cast<ll>(array.shape[key]), call_.seqlen_k);
    }
    return check_contiguous(array);
  }

  tilekiln_status biases() {
    const Array &bias = arrays_.bias, &slopes = arrays_.alibi_slopes;
    if (bias.given()) {
      TILEKILN_TRY(dtype_like(bias, arrays_.out));
      TILEKILN_TRY(scores_shape(bias, true));
      problem_.bias = bias.data;
      problem_.bias_head = bias.stride[bias.ndim - 3];
      problem_.bias_row = bias.stride[bias.ndim - 2];
      call_.steps.bias = group_ ? problem_.bias_row : bias.stride[0];
    }
    if (slopes.given()) {
      TILEKILN_TRY(check_dtype(slopes, TILEKILN_FP32, "fp32"));
      if (slopes.ndim != 1 && slopes.ndim != 2) {
        return fail_argument(slopes.name, "had %d dimensions, must have 1, (nhead_q), or 2, (batch, nhead_q)",
                             slopes.ndim);
      }
      if (slopes.ndim == 2)
        TILEKILN_TRY(
            check_length(slopes, 0, "batch", call_.batch, group_ ? "the number of sequences" : "the batch of q"));
      TILEKILN_TRY(check_length(slopes, slopes.ndim - 1, "nhead", problem_.nhead_q, "the nhead of q"));
      TILEKILN_TRY(check_contiguous(slopes));
      problem_.alibi_slopes = reinterpret_cast<const float*>(slopes.data);
      call_.steps.alibi = slopes.ndim == 2 ? slopes.stride[0] : 0;
    }
    return TILEKILN_OK;
  }

  tilekiln_status sink() {
    const Array& sink = arrays_.sink;
    if (!sink.given()) return TILEKILN_OK;
    TILEKILN_TRY(check_dtype(sink, TILEKILN_FP32, "fp32"));
    TILEKILN_TRY(check_ndim(sink, 1, "(nhead_q)"));
    TILEKILN_TRY(check_length(sink, 0, "nhead", problem_.nhead_q, "the nhead of q"));
    TILEKILN_TRY(check_contiguous(sink));
    problem_.sink = reinterpret_cast<const float*>(sink.data);
    return TILEKILN_OK;
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

  tilekiln_status randval() {
    const Array& randval = arrays_.randval;
    if (!randval.given()) return TILEKILN_OK;
    TILEKILN_TRY(check_dtype(randval, TILEKILN_UINT8, "uint8"));
    TILEKILN_TRY(scores_shape(randval, false));
    problem_.randval = reinterpret_cast<unsigned char*>(randval.data);
    problem_.randval_head = randval.stride[randval.ndim - 3];
    problem_.randval_row = randval.stride[randval.ndim - 2];
    call_.steps.randval = group_ ? problem_.randval_row : randval.stride[0];
    return TILEKILN_OK;
  }

  tilekiln_status overlaps() {
    for (const Array* output : {&arrays_.out, &arrays_.lse, &arrays_.randval}) {
      if (!output->given()) continue;
      if (overlaps_itself(*output)) {
        return fail_argument(
            output->name,
            "strides put two elements at one address, must give each its own: pass an array that is not expanded");
      }
      for (int i = 0; i < count_; ++i) {
        if (given_[i] == output || !overlap(*output, *given_[i])) continue;
        return fail_argument(output->name, "shares memory with %s, must have its own", given_[i]->name);
      }
    }
    return TILEKILN_OK;
  }

  tilekiln_status where_to_run() {
    TILEKILN_TRY(thread_count(args_.num_threads, &call_.threads));
    if (args_.stream != nullptr) {
      TILEKILN_TRY(check_stream(args_.stream));
      call_.stream = args_.stream;
    }
    if (args_.executor == nullptr) return TILEKILN_OK;
    const tilekiln_executor& executor = *args_.executor;
    if (executor.size != sizeof(tilekiln_executor)) {
      return fail_argument("executor", "size was %zu, must be %zu, sizeof(tilekiln_executor)", executor.size,
                           sizeof(tilekiln_executor));
    }
    if (executor.parallel_for == nullptr) return fail_argument("executor", "parallel_for was null, must be a function");
    if (executor.max_workers < 1)
      return fail_argument("executor", "max_workers was %d, must be 1 or more", executor.max_workers);
    call_.lent = true;
    call_.executor = executor;
    // The threads are the caller's, so it is the caller who says how many; num_threads can only ask for fewer.
    if (args_.num_threads == 0 || executor.max_workers < call_.threads) call_.threads = executor.max_workers;
    return TILEKILN_OK;
  }

  const tilekiln_fmha_fwd_args& args_;
  FwdCall& call_;
  FwdProblem& problem_;
  FwdArrays arrays_;
  const Array* given_[20];
  int count_ = 0;
  Axes axes_ = {};
  bool group_ = false;
  int64_t sq_ = 0, sk_ = 0;  // batch mode: seqlen; group mode: total length
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
