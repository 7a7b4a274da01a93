/* SPDX-License-Identifier: MIT */
/* fmha_bwd.h - Made by `python -m codegen operators --write` from kernels/attention/fmha_bwd/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_FMHA_BWD_H
#define TILEKILN_OPERATORS_FMHA_BWD_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Attention backward: the gradients of sum(dout out) of fmha_fwd.
 *
 * With S = softmax_scale q k^T (capped or biased, masked), P = exp(S - lse) (dropped as the forward did):
 *   dv = P^T dout, dS = P (dout v^T - delta) with delta = rowsum(dout out), dbias = dS, dk = softmax_scale dS^T q, dq = softmax_scale dS k,
 *   d_sink[h] = -sum over the rows of head h of exp(sink[h] - lse) delta.
 * (Dao et al., "FlashAttention-2", 2023, section 3.1.2.)
 *
 * Shapes, layouts and lengths are those of the forward; give the same masks, biases, scale, dropout_p and rng as there.
 * dout has the shape of out; dq, dk and dv those of q, k and v. dk and dv are summed over the query heads of a group.
 * Gradients are written, not added to: every row below its sequence's logical length (dq of a sequence without keys, dk and dv of one without
 * queries are 0), and none beyond. They may not overlap any input or each other. The last dimension of every array is contiguous. */
typedef struct tilekiln_fmha_bwd_args {
  size_t size; /* sizeof(tilekiln_fmha_bwd_args): set by tilekiln_fmha_bwd_defaults */
  const tilekiln_tensor* dout; /* dtype of out (batch, seqlen_q, nhead_q, hdim_v), group: (total_q, nhead_q, hdim_v). The gradient of out */
  const tilekiln_tensor* q; /* fp32, fp16 or bf16 (batch, seqlen_q, nhead_q, hdim_q), group: (total_q, nhead_q, hdim_q). Queries */
  const tilekiln_tensor* k; /* dtype of q (batch, seqlen_k, nhead_k, hdim_q), group: (total_k, nhead_k, hdim_q). Keys */
  const tilekiln_tensor* v; /* dtype of q (batch, seqlen_k, nhead_k, hdim_v), group: (total_k, nhead_k, hdim_v). Values */
  const tilekiln_tensor* out; /* dtype of q (batch, seqlen_q, nhead_q, hdim_v), group: (total_q, nhead_q, hdim_v). As the forward wrote it */
  const tilekiln_tensor* lse; /* fp32 (batch, nhead_q, seqlen_q), group: (nhead_q, total_q). As the forward wrote it */
  const tilekiln_tensor* dq; /* dtype of q (batch, seqlen_q, nhead_q, hdim_q), group: (total_q, nhead_q, hdim_q). The gradient of q */
  const tilekiln_tensor* dk; /* dtype of k (batch, seqlen_k, nhead_k, hdim_q), group: (total_k, nhead_k, hdim_q). The gradient of k */
  const tilekiln_tensor* dv; /* dtype of v (batch, seqlen_k, nhead_k, hdim_v), group: (total_k, nhead_k, hdim_v). The gradient of v */
  const tilekiln_tensor* dbias; /* dtype of q (batch, nhead_q, seqlen_q, seqlen_k), group: (nhead_q, total_q, max_seqlen_k); or null. The gradient of
     bias, never broadcast: sum over what the bias repeats. Pairs that the mask hides are 0; columns from seqlen_k on are left as they were */
  const tilekiln_tensor* d_sink; /* fp32 (nhead_q); or null. The gradient of sink, bit-reproducible */
  const tilekiln_tensor* delta; /* fp32; or null. Shape and strides of lse: rowsum(dout out), for those who want it */
  const tilekiln_tensor* bias; /* dtype of out (1|batch, 1|nhead_q, seqlen_q, seqlen_k), group: (1|nhead_q, total_q, max_seqlen_k); or null. As in the
     forward */
  const tilekiln_tensor* alibi_slopes; /* fp32 (nhead_q) or (batch, nhead_q); or null. As in the forward */
  const tilekiln_tensor* sink; /* fp32 (nhead_q); or null. As in the forward */
  const tilekiln_tensor* seqstart_q; /* int32 (batch + 1); or null. Group mode: the physical start of each sequence in the total dimension */
  const tilekiln_tensor* seqstart_k; /* int32 (batch + 1); or null. Group mode: the same of k and v */
  const tilekiln_tensor* seqlen_q; /* int32 (batch); or null. Logical lengths; not with cu_seqlens_q */
  const tilekiln_tensor* seqlen_k; /* int32 (batch); or null. Logical lengths; not with cu_seqlens_k */
  const tilekiln_tensor* cu_seqlens_q; /* int32 (batch + 1); or null. Cumulative logical lengths; in group mode without seqstart_q also the physical
     starts */
  const tilekiln_tensor* cu_seqlens_k; /* int32 (batch + 1); or null. The same of k and v */
  const tilekiln_tensor* randval; /* uint8 (batch, nhead_q, seqlen_q, seqlen_k), group: (nhead_q, total_q, max_seqlen_k); or null. The random bytes of
     dropout, as in the forward */
  const tilekiln_tensor* workspace; /* uint8; or null. (bytes), contiguous, aligned to 16; contents arbitrary. It stays until the stream has run the
     call. Null: the call makes its own */
  const float* softmax_scale; /* null: 1 / sqrt(hdim_q) */
  float softcap; /* as in the forward */
  float dropout_p; /* the probability that a weight is dropped */
  uint64_t rng_seed, rng_offset; /* of dropout's Philox-4x32-7 */
  int32_t causal; /* 0 or 1. yes: window_right = 0 */
  int32_t window_left, window_right; /* row i sees keys [i + shift - left, i + shift + right]; -1: unbounded */
  int32_t mask_origin; /* 0 (bottom_right) or 1 (top_left). bottom_right: shift = seqlen_k - seqlen_q; top_left: shift = 0 */
  int32_t sink_size; /* the first keys that stay visible whatever the left window says */
  int32_t max_seqlen_q; /* above 0: no sequence has more queries, and index arrays on a device whose memory the host may not read stay there, neither
     copied nor checked; 0: the host reads them */
  int32_t max_seqlen_k; /* the same of keys (of a cache: of those that are attended to), with max_seqlen_q */
  int32_t layout; /* 0 (bshd) or 1 (bhsd). The order of the two middle dimensions */
  int32_t deterministic; /* 0 or 1. yes: the same bits every time, over any number of threads */
  int32_t workers; /* logical workers of the deterministic schedule; part of the problem, because other workers sum in another order. 0: chosen from
     the sizes */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_fmha_bwd_args;

/* All fields absent, windows unbounded, instance -1. Then set dout, q, k, v, out, lse, dq, dk, dv and what else is wanted. */
static inline tilekiln_fmha_bwd_args tilekiln_fmha_bwd_defaults(void) {
  TILEKILN_ZEROED(tilekiln_fmha_bwd_args, args);
  args.window_left = -1;
  args.window_right = -1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_fmha_bwd(const tilekiln_fmha_bwd_args* args);
/* Questions about a call (base.h): instances of fmha_bwd_dot_do_o, fmha_bwd_dq_dk_dv, fmha_bwd_convert_dq, -1 for a stage that it does not need. */
TILEKILN_API tilekiln_status tilekiln_fmha_bwd_find(const tilekiln_fmha_bwd_args* args, int64_t instances[3]);
TILEKILN_API tilekiln_status tilekiln_fmha_bwd_why(const tilekiln_fmha_bwd_args* args, char* text, size_t capacity, size_t* length);
/* The bytes of workspace that fmha_bwd needs for the same arguments. Checks them alike and runs nothing. */
TILEKILN_API tilekiln_status tilekiln_fmha_bwd_workspace_size(const tilekiln_fmha_bwd_args* args, uint64_t* workspace_size);

/* The problem of a launcher, which it must know before there is any data. */
typedef struct tilekiln_fmha_bwd_problem {
  size_t size; /* sizeof(tilekiln_fmha_bwd_problem): set by tilekiln_fmha_bwd_problem_defaults */
  int32_t dtype; /* TILEKILN_FP32, TILEKILN_FP16 or TILEKILN_BF16 */
  int32_t hdim_q;
  int32_t hdim_v;
  int32_t nhead_q;
  int32_t nhead_k;
  int32_t group; /* 0 (batch) or 1 (group) */
  int32_t batch; /* the number of sequences */
  int64_t seqlen_q; /* batch mode: rows of each sequence; group mode: of all together, seqstart_q[batch] */
  int64_t seqlen_k; /* batch mode: keys of each sequence; group mode: of the longest */
  int32_t mask; /* 0 (none) or 1 (window): with causal or a window */
  int32_t bias; /* 0 (none), 1 (elementwise) or 2 (alibi) */
  int32_t dbias; /* 0 or 1: the bias gradient too */
  int32_t dropout; /* 0 (none), 1 (apply) or 2 (store): the last with randval */
  int32_t softcap; /* 0 or 1: with a soft cap */
  int32_t sink; /* 0 or 1: with sink logits, or sink columns left of a window */
  int32_t deterministic; /* 0 or 1 */
  int32_t workers; /* as in tilekiln_fmha_bwd_args */
  int32_t device_type, device_id; /* of the arrays and the workspace; DLPack's numbers: 1 is the host, 2 CUDA */
  int64_t max_seqlen_q; /* group mode: no sequence has more rows; 0: seqlen_q */
} tilekiln_fmha_bwd_problem;

static inline tilekiln_fmha_bwd_problem tilekiln_fmha_bwd_problem_defaults(void) {
  TILEKILN_ZEROED(tilekiln_fmha_bwd_problem, problem);
  problem.device_type = TILEKILN_CPU;
  return problem;
}

TILEKILN_END_C
#endif
