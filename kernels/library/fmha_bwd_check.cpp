// The arguments of fmha_bwd, all checked before anything is run: the only place, for every language.
#include "attention_check.h"
#include "tilekiln/runtime/fmha_bwd.h"

namespace tilekiln::fmha {
namespace {

class Check : AttentionCheck<tilekiln_fmha_bwd_args, BwdArrays, BwdCall> {
 public:
  using AttentionCheck::AttentionCheck;

  tilekiln_status run(BwdLengths lengths) {
    TILEKILN_TRY(scalars());
    TILEKILN_TRY(more_scalars());
    TILEKILN_TRY(read_arrays());
    TILEKILN_TRY(qkv([&] { return dtypes(); }));
    TILEKILN_TRY(gradients());
    features();
    if (lengths == BwdLengths::now) {
      TILEKILN_TRY(check_sequences(arrays_, group_, sq_, sk_, nullptr, &call_));
    } else {
      TILEKILN_TRY(index_shapes());
    }
    TILEKILN_TRY(lse());
    TILEKILN_TRY(biases());
    TILEKILN_TRY(bias_gradient());
    TILEKILN_TRY(sink());
    TILEKILN_TRY(sink_gradient());
    TILEKILN_TRY(randval());
    TILEKILN_TRY(delta());
    TILEKILN_TRY(workspace());
    TILEKILN_TRY(overlaps({&arrays_.dq, &arrays_.dk, &arrays_.dv, &arrays_.dbias, &arrays_.d_sink, &arrays_.delta,
                           &arrays_.randval, &arrays_.workspace}));
    TILEKILN_TRY(where_to_run());
    set_bwd_queries({problem_.features, problem_.hdim_q, problem_.hdim_v}, call_.queries);
    call_.physical_q = sq_;
    call_.physical_k = sk_;
    for (const Sequence& sequence : call_.sequences) {
      if (sequence.room_k > call_.longest_k) call_.longest_k = sequence.room_k;
    }
    return TILEKILN_OK;
  }

 private:
  tilekiln_status more_scalars() {
    if (args_.deterministic != 0 && args_.deterministic != 1) {
      return fail_argument("deterministic", "was %d, must be 0 or 1", args_.deterministic);
    }
    if (args_.workers < 0 || args_.workers > max_workers) {
      return fail_argument("workers", "was %d, must be 0 (chosen from the sizes) or from 1 to %d", args_.workers,
                           max_workers);
    }
    if (args_.workers != 0 && args_.deterministic == 0) {
      return fail_argument(
          "workers", "was %d without deterministic, must be 0: only the deterministic schedule has any", args_.workers);
    }
    if (args_.dbias != nullptr && args_.bias == nullptr) {
      return fail_argument("dbias", "was given without a bias, must be null: there is nothing it is the gradient of");
    }
    if (args_.d_sink != nullptr && args_.sink == nullptr) {
      return fail_argument("d_sink", "was given without sink, must be null: there is nothing it is the gradient of");
    }
    call_.workers = args_.workers;
    return TILEKILN_OK;
  }

  tilekiln_status read_arrays() {
#define TILEKILN_REQUIRED(name) TILEKILN_TRY(required(#name, args_.name, &arrays_.name))
    TILEKILN_REQUIRED(dout);
    TILEKILN_REQUIRED(q);
    TILEKILN_REQUIRED(k);
    TILEKILN_REQUIRED(v);
    TILEKILN_REQUIRED(out);
    TILEKILN_REQUIRED(lse);
    TILEKILN_REQUIRED(dq);
    TILEKILN_REQUIRED(dk);
    TILEKILN_REQUIRED(dv);
#undef TILEKILN_REQUIRED
    TILEKILN_OPTIONAL(dbias);
    TILEKILN_OPTIONAL(d_sink);
    TILEKILN_OPTIONAL(delta);
    TILEKILN_OPTIONAL(bias);
    TILEKILN_OPTIONAL(alibi_slopes);
    TILEKILN_OPTIONAL(sink);
    TILEKILN_TRY(read_index_arrays());
    TILEKILN_OPTIONAL(randval);
    TILEKILN_OPTIONAL(workspace);
#undef TILEKILN_OPTIONAL
    return TILEKILN_OK;
  }

  tilekiln_status dtypes() {
    const Array& q = arrays_.q;
    if (q.dtype != TILEKILN_FP32 && q.dtype != TILEKILN_FP16) {
      TILEKILN_TRY(check_dtype(q, TILEKILN_BF16, "fp32, fp16 or bf16"));
    }
    for (const Array* array : {&arrays_.k, &arrays_.v, &arrays_.out}) TILEKILN_TRY(dtype_like(*array, q));
    return TILEKILN_OK;
  }

  // `array` has the dtype and the shape of `like`.
  tilekiln_status same(const Array& array, const Array& like, i64* row, i64* head, i64* sequence) {
    char form[32], why[32];
    snprintf(form, sizeof(form), "as %s", like.name);
    TILEKILN_TRY(check_ndim(array, like.ndim, form));
    TILEKILN_TRY(dtype_like(array, like));
    const struct {
      int index;
      const char *name, *of;
    } lengths[] = {{axes_.hdim, "hdim", "hdim"},
                   {axes_.head, "nhead", "nhead"},
                   {axes_.seq, group_ ? "total length" : "seqlen", group_ ? "total length" : "seqlen"},
                   {group_ ? axes_.seq : 0, "batch", "batch"}};
    for (const auto& length : lengths) {
      snprintf(why, sizeof(why), "the %s of %s", length.of, like.name);
      TILEKILN_TRY(check_length(array, length.index, length.name, like.shape[length.index], why));
    }
    TILEKILN_TRY(check_contiguous(array));
    steps_of(array, row, head, sequence);
    return TILEKILN_OK;
  }

  tilekiln_status gradients() {
    BwdSteps& steps = call_.steps;
    TILEKILN_TRY(same(arrays_.dout, arrays_.out, &problem_.dout_row, &problem_.dout_head, &steps.dout));
    TILEKILN_TRY(same(arrays_.dq, arrays_.q, &problem_.dq_row, &problem_.dq_head, &steps.dq));
    TILEKILN_TRY(same(arrays_.dk, arrays_.k, &problem_.dk_row, &problem_.dk_head, &steps.dk));
    TILEKILN_TRY(same(arrays_.dv, arrays_.v, &problem_.dv_row, &problem_.dv_head, &steps.dv));
    problem_.dout = arrays_.dout.data;
    problem_.dq = arrays_.dq.data;
    problem_.dk = arrays_.dk.data;
    problem_.dv = arrays_.dv.data;
    return TILEKILN_OK;
  }

  // Those of the call. Its mode is there already.
  void features() {
    BwdFeatures& features = problem_.features;
    features.dtype = dtype_of(arrays_.q.dtype);
    features.bias = args_.bias != nullptr           ? Bias::elementwise
                    : args_.alibi_slopes != nullptr ? Bias::alibi
                                                    : Bias::none;
    features.mask = args_.causal != 0 || args_.window_left >= 0 || args_.window_right >= 0;
    features.dbias = args_.dbias != nullptr;
    features.dropout = args_.dropout_p > 0;
    features.store_randval = args_.randval != nullptr;
    features.softcap = args_.softcap > 0;
    features.sink = args_.sink != nullptr || (args_.sink_size > 0 && args_.window_left >= 0);
    features.deterministic = args_.deterministic != 0;
  }

  // What can be said of the index arrays before they may be read.
  tilekiln_status index_shapes() {
    if (group_) {
      const Array& starts = arrays_.seqstart_q.given() ? arrays_.seqstart_q : arrays_.cu_seqlens_q;
      if (!starts.given())
        return fail_argument("seqstart_q", "was null, must be given in group mode (q of 3 dimensions)");
      TILEKILN_TRY(check_ndim(starts, 1, "batch + 1"));
      if (starts.shape[0] < 1) return fail_argument(starts.name, "had no entry, must have batch + 1");
      call_.batch = static_cast<int>(starts.shape[0] - 1);
    }
    for (const Array* array : {&arrays_.seqstart_q, &arrays_.seqstart_k, &arrays_.cu_seqlens_q, &arrays_.cu_seqlens_k,
                               &arrays_.seqlen_q, &arrays_.seqlen_k}) {
      if (!array->given()) continue;
      const bool lengths = array == &arrays_.seqlen_q || array == &arrays_.seqlen_k;
      TILEKILN_TRY(check_dtype(*array, TILEKILN_INT32, "int32"));
      TILEKILN_TRY(check_ndim(*array, 1, lengths ? "batch" : "batch + 1"));
      TILEKILN_TRY(
          check_length(*array, 0, "its length", call_.batch + (lengths ? 0 : 1), lengths ? "batch" : "batch + 1"));
    }
    return TILEKILN_OK;
  }

  tilekiln_status bias_gradient() {
    const Array& dbias = arrays_.dbias;
    if (!dbias.given()) return TILEKILN_OK;
    TILEKILN_TRY(dtype_like(dbias, arrays_.q));
    TILEKILN_TRY(scores_shape(dbias, false));
    problem_.dbias = dbias.data;
    problem_.dbias_head = dbias.stride[dbias.ndim - 3];
    problem_.dbias_row = dbias.stride[dbias.ndim - 2];
    call_.steps.dbias = group_ ? problem_.dbias_row : dbias.stride[0];
    return TILEKILN_OK;
  }

  tilekiln_status sink_gradient() {
    const Array& d_sink = arrays_.d_sink;
    if (!d_sink.given()) return TILEKILN_OK;
    TILEKILN_TRY(check_dtype(d_sink, TILEKILN_FP32, "fp32"));
    TILEKILN_TRY(check_ndim(d_sink, 1, "(nhead_q)"));
    TILEKILN_TRY(check_length(d_sink, 0, "nhead", problem_.nhead_q, "the nhead of q"));
    TILEKILN_TRY(check_contiguous(d_sink));
    call_.d_sink = reinterpret_cast<float*>(d_sink.data);
    return TILEKILN_OK;
  }

  tilekiln_status delta() {
    const Array &delta = arrays_.delta, &lse = arrays_.lse;
    call_.lse = lse;
    if (!delta.given()) return TILEKILN_OK;
    TILEKILN_TRY(check_dtype(delta, TILEKILN_FP32, "fp32"));
    TILEKILN_TRY(check_ndim(delta, lse.ndim, "as lse"));
    for (int i = 0; i < lse.ndim; ++i) {
      TILEKILN_TRY(check_length(delta, i, "a dimension", lse.shape[i], "as in lse"));
      if (delta.stride[i] != lse.stride[i] && lse.shape[i] > 1) {
        return fail_argument("delta", "stride %lld in dimension %d, must be %lld, that of lse",
                             static_cast<ll>(delta.stride[i]), i, static_cast<ll>(lse.stride[i]));
      }
    }
    problem_.delta = reinterpret_cast<float*>(delta.data);
    return TILEKILN_OK;
  }

  tilekiln_status workspace() {
    const Array& workspace = arrays_.workspace;
    if (!workspace.given()) return TILEKILN_OK;
    TILEKILN_TRY(check_workspace(workspace));
    call_.memory = BwdMemory::given;
    call_.workspace = workspace;
    return TILEKILN_OK;
  }
};

}  // namespace

tilekiln_status check_workspace(const Array& workspace) {
  TILEKILN_TRY(check_dtype(workspace, TILEKILN_UINT8, "uint8"));
  TILEKILN_TRY(check_ndim(workspace, 1, "bytes"));
  TILEKILN_TRY(check_contiguous(workspace));
  if (reinterpret_cast<uintptr_t>(workspace.data) % 16 != 0) {
    return fail_argument("workspace", "data was at %p, must be aligned to 16 bytes",
                         static_cast<const void*>(workspace.data));
  }
  return TILEKILN_OK;
}

tilekiln_status check_bwd(const tilekiln_fmha_bwd_args& args, BwdCall* call, BwdLengths lengths) {
  // Only the size may be read before it is known to be right.
  if (args.size != sizeof(args)) {
    return fail_argument(
        "args",
        "size was %zu, must be %zu, sizeof(tilekiln_fmha_bwd_args) of ABI %d: start from tilekiln_fmha_bwd_defaults()",
        args.size, sizeof(args), TILEKILN_ABI_VERSION);
  }
  return Check(args, call).run(lengths);
}

}  // namespace tilekiln::fmha
