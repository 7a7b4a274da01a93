// What every attention call checks alike, whatever its direction: the only place, for every language.
#pragma once
#include <stdio.h>

#include <initializer_list>

#include "tilekiln/runtime/attention.h"
#include "tilekiln/runtime/environment.h"
#include "tilekiln/runtime/stream.h"

namespace tilekiln::fmha {

// Where the dimensions of q, k, v and out lie.
struct Axes { int seq, head, hdim; };

// Fills call.problem and call.steps from args. The members it reads and writes have the same names in every direction;
// a derived class calls the parts in the order its errors shall come, and adds its own.
template <class Args, class Arrays, class Call>
class AttentionCheck {
 public:
  AttentionCheck(const Args& args, Call* call) : args_(args), call_(*call), problem_(call->problem) {}

 protected:
  using ll = long long;

  static int cut(int32_t value) { return value > 2 * max_seqlen - 1 ? 2 * max_seqlen - 1 : value; }

  static tilekiln_status at_least(const char* name, int32_t value, int32_t least, const char* what) {
    if (value >= least) return TILEKILN_OK;
    return fail_argument(name, "was %d, must be %s", value, what);
  }

  // The numbers: windows, scales, probabilities, layout.
  tilekiln_status scalars() {
    if constexpr (requires { args_.layout; }) {
      if (args_.layout != TILEKILN_BSHD && args_.layout != TILEKILN_BHSD) {
        return fail_argument("layout", "was %d, must be %d (bshd) or %d (bhsd)", args_.layout, TILEKILN_BSHD,
                             TILEKILN_BHSD);
      }
      bhsd_ = args_.layout == TILEKILN_BHSD;
    }
    if (args_.mask_origin != TILEKILN_BOTTOM_RIGHT && args_.mask_origin != TILEKILN_TOP_LEFT) {
      return fail_argument("mask_origin", "was %d, must be %d (bottom_right) or %d (top_left)", args_.mask_origin,
                           TILEKILN_BOTTOM_RIGHT, TILEKILN_TOP_LEFT);
    }
    if (args_.causal != 0 && args_.causal != 1) return fail_argument("causal", "was %d, must be 0 or 1", args_.causal);
    TILEKILN_TRY(at_least("window_left", args_.window_left, -1, "-1 (unbounded) or more"));
    TILEKILN_TRY(at_least("window_right", args_.window_right, -1, "-1 (unbounded) or more"));
    TILEKILN_TRY(at_least("sink_size", args_.sink_size, 0, "0 or more"));
    if (args_.softmax_scale != nullptr && !__builtin_isfinite(*args_.softmax_scale)) {
      return fail_argument("softmax_scale", "was %g, must be finite", static_cast<double>(*args_.softmax_scale));
    }
    if (!(args_.softcap >= 0) || !__builtin_isfinite(args_.softcap)) {
      return fail_argument("softcap", "was %g, must be 0 (off) or a finite number above",
                           static_cast<double>(args_.softcap));
    }
    if constexpr (requires { args_.dropout_p; }) {
      if (!(args_.dropout_p >= 0 && args_.dropout_p < 1)) {
        return fail_argument("dropout_p", "was %g, must be at least 0 and below 1",
                             static_cast<double>(args_.dropout_p));
      }
    }
    if (args_.bias != nullptr && args_.alibi_slopes != nullptr) {
      return fail_argument("bias", "was given with alibi_slopes, must be alone: add the alibi term to the bias");
    }
    if constexpr (requires { args_.dropout_p; }) {
      if (args_.randval != nullptr && args_.dropout_p == 0) {
        return fail_argument("randval",
                             "was given with dropout_p 0, must be null: there are no random bytes without dropout");
      }
      problem_.dropout_p = args_.dropout_p;
      problem_.rng_seed = args_.rng_seed;
      problem_.rng_offset = args_.rng_offset;
    }
    if (args_.instance < -1) {
      return fail_argument("instance", "was %lld, must be -1 (the dispatcher chooses) or an instance",
                           static_cast<ll>(args_.instance));
    }

    if (args_.softmax_scale != nullptr) problem_.softmax_scale = *args_.softmax_scale;  // the default needs hdim_q
    problem_.softcap = args_.softcap;
    // Beyond max_seqlen a window is unbounded; cut there so that no sum of positions leaves an int.
    problem_.window_left = cut(args_.window_left);
    problem_.window_right = args_.causal != 0 ? 0 : cut(args_.window_right);
    problem_.top_left = args_.mask_origin == TILEKILN_TOP_LEFT;
    problem_.sink_size = cut(args_.sink_size);
    return TILEKILN_OK;
  }

#define TILEKILN_OPTIONAL(name) \
  if (args_.name != nullptr) TILEKILN_TRY(given(#name, args_.name, &arrays_.name))
  tilekiln_status read_index_arrays() {
    TILEKILN_OPTIONAL(seqstart_q);
    TILEKILN_OPTIONAL(seqstart_k);
    TILEKILN_OPTIONAL(seqlen_q);
    TILEKILN_OPTIONAL(seqlen_k);
    TILEKILN_OPTIONAL(cu_seqlens_q);
    TILEKILN_OPTIONAL(cu_seqlens_k);
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

  // `dtypes()`: checks those of q, k, v and out.
  template <class Dtypes>
  tilekiln_status qkv(Dtypes&& dtypes) {
    const Array &q = arrays_.q, &k = arrays_.k, &v = arrays_.v, &out = arrays_.out;
    TILEKILN_TRY(mode());
    axes_kv_ = axes_;
    for (const Array* array : {&k, &v, &out}) TILEKILN_TRY(check_ndim(*array, q.ndim, form_of_q()));
    TILEKILN_TRY(dtypes());
    TILEKILN_TRY(heads(k, v));
    sk_ = k.shape[axes_kv_.seq];
    TILEKILN_TRY(check_length(v, axes_kv_.seq, group_ ? "total length" : "seqlen", sk_,
                              group_ ? "the total length of k" : "the seqlen of k"));
    TILEKILN_TRY(queries());
    if (!group_) {
      for (const Array* array : {&k, &v}) TILEKILN_TRY(check_length(*array, 0, "batch", call_.batch, "the batch of q"));
      if (sk_ > max_seqlen)
        return fail_argument("k", "seqlen was %lld, must be at most %d", static_cast<ll>(sk_), max_seqlen);
    }
    for (const Array* array : {&q, &k, &v, &out}) TILEKILN_TRY(check_contiguous(*array));
    set_queries();
    steps_of(k, &problem_.k_row, &problem_.k_head, &call_.steps.k);
    steps_of(v, &problem_.v_row, &problem_.v_head, &call_.steps.v);
    return TILEKILN_OK;
  }

  // Group or batch, and where the dimensions of q and out are.
  tilekiln_status mode() {
    const Array& q = arrays_.q;
    if (q.ndim != 3 && q.ndim != 4) {
      return fail_argument(
          "q", "had %d dimensions, must have 4, (batch, seqlen, nhead, hdim), or 3, (total, nhead, hdim)", q.ndim);
    }
    group_ = problem_.features.group = q.ndim == 3;
    axes_ = axes_of(q.ndim);
    return TILEKILN_OK;
  }

  Axes axes_of(int ndim) const { return {ndim - (bhsd_ ? 2 : 3), ndim - (bhsd_ ? 3 : 2), ndim - 1}; }

  const char* form_of_q() const {
    return group_ ? (bhsd_ ? "(nhead, total, hdim) as q" : "(total, nhead, hdim) as q")
                  : (bhsd_ ? "(batch, nhead, seqlen, hdim) as q" : "(batch, seqlen, nhead, hdim) as q");
  }

  // Head dims and head counts of q, k, v and out.
  tilekiln_status heads(const Array& k, const Array& v) {
    const Array &q = arrays_.q, &out = arrays_.out;
    const int64_t hdim_q = q.shape[axes_.hdim], hdim_v = v.shape[axes_kv_.hdim];
    if (hdim_q < 1 || hdim_q > 256)
      return fail_argument("q", "hdim was %lld, must be from 1 to 256", static_cast<ll>(hdim_q));
    if (hdim_v < 1 || hdim_v > 256)
      return fail_argument("v", "hdim was %lld, must be from 1 to 256", static_cast<ll>(hdim_v));
    TILEKILN_TRY(check_length(k, axes_kv_.hdim, "hdim", hdim_q, "the hdim of q"));
    TILEKILN_TRY(check_length(out, axes_.hdim, "hdim", hdim_v, "the hdim of v"));

    const int64_t nhead_q = q.shape[axes_.head], nhead_k = k.shape[axes_kv_.head];
    if (nhead_q < 1 || nhead_q > INT32_MAX)
      return fail_argument("q", "nhead was %lld, must be from 1 to 2147483647", static_cast<ll>(nhead_q));
    if (nhead_k < 1 || nhead_q % nhead_k != 0) {
      return fail_argument("k", "nhead was %lld, must divide %lld, the nhead of q", static_cast<ll>(nhead_k),
                           static_cast<ll>(nhead_q));
    }
    TILEKILN_TRY(check_length(v, axes_kv_.head, "nhead", nhead_k, "the nhead of k"));
    TILEKILN_TRY(check_length(out, axes_.head, "nhead", nhead_q, "the nhead of q"));

    problem_.hdim_q = static_cast<int>(hdim_q);
    problem_.hdim_v = static_cast<int>(hdim_v);
    problem_.nhead_q = static_cast<int>(nhead_q);
    problem_.nhead_k = static_cast<int>(nhead_k);
    return TILEKILN_OK;
  }

  // Rows and, in batch mode, the batch of q and out.
  tilekiln_status queries() {
    const Array &q = arrays_.q, &out = arrays_.out;
    sq_ = q.shape[axes_.seq];
    TILEKILN_TRY(check_length(out, axes_.seq, group_ ? "total length" : "seqlen", sq_,
                              group_ ? "the total length of q" : "the seqlen of q"));
    if (!group_) {
      const int64_t batch = q.shape[0];
      if (batch > INT32_MAX)
        return fail_argument("q", "batch was %lld, must be at most 2147483647", static_cast<ll>(batch));
      TILEKILN_TRY(check_length(out, 0, "batch", batch, "the batch of q"));
      if (sq_ > max_seqlen)
        return fail_argument("q", "seqlen was %lld, must be at most %d", static_cast<ll>(sq_), max_seqlen);
      call_.batch = static_cast<int>(batch);
    }
    return TILEKILN_OK;
  }

  // After every check of the shapes.
  void set_queries() {
    if (args_.softmax_scale == nullptr)
      problem_.softmax_scale = 1 / __builtin_sqrtf(static_cast<float>(problem_.hdim_q));
    problem_.q = arrays_.q.data;
    problem_.k = arrays_.k.data;
    problem_.v = arrays_.v.data;
    problem_.out = arrays_.out.data;
    steps_of(arrays_.q, &problem_.q_row, &problem_.q_head, &call_.steps.q);
    steps_of(arrays_.out, &problem_.out_row, &problem_.out_head, &call_.steps.out);
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
    if (!group_ && !cached_) {
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
      if (!cached_) TILEKILN_TRY(dtype_like(bias, arrays_.out));
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

  // No output may share memory with another array, or hold two elements at one address.
  tilekiln_status overlaps(std::initializer_list<const Array*> outputs) {
    for (const Array* output : outputs) {
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

  // What the dispatcher asks for; the signature is already there.
  void set_query() {
    call_.query.wants[want_hdim_q] = problem_.hdim_q;
    call_.query.wants[want_hdim_v] = problem_.hdim_v;
    call_.query.sizes[size_seqlen_q] = call_.seqlen_q;
  }

  const Args& args_;
  Call& call_;
  decltype(Call::problem)& problem_;
  Arrays arrays_;
  const Array* given_[32];
  int count_ = 0;
  Axes axes_ = {}, axes_kv_ = {};  // of q and out, of k and v
  bool group_ = false, bhsd_ = false;
  bool cached_ = false;      // k and v are a cache, with more room than keys; the dtype of bias is checked elsewhere
  int64_t sq_ = 0, sk_ = 0;  // batch mode: seqlen; group mode: total length
};

}  // namespace tilekiln::fmha
