/* SPDX-License-Identifier: MIT */
/* fmha_fwd.h - Made by `python -m codegen operators --write` from kernels/attention/fmha_fwd/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_FMHA_FWD_H
#define TILEKILN_OPERATORS_FMHA_FWD_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Attention forward: out = softmax(softmax_scale q k^T [soft-capped | + bias], masked) v, per query head h with key head h / (nhead_q / nhead_k).
 *
 * Batch mode: q (batch, seqlen_q, nhead_q, hdim_q), k (batch, seqlen_k, nhead_k, hdim_q), v (batch, seqlen_k, nhead_k, hdim_v),
 * out (batch, seqlen_q, nhead_q, hdim_v), lse (batch, nhead_q, seqlen_q). With layout bhsd the two middle dimensions of
 * q, k, v and out are exchanged: (batch, nhead, seqlen, hdim).
 * Group mode (q of 3 dimensions): q (total_q, nhead_q, hdim_q), k (total_k, ...), v, out alike, lse (nhead_q, total_q).
 * With layout bhsd: (nhead, total, hdim).
 *
 * Arrays are read and written with their strides, and aligned to their elements; the last dimension of all but the index arrays
 * is contiguous. out, lse and randval may not overlap any input or each other, nor themselves.
 * The structs a pointer here names are read before the call returns, and so are the index arrays (seqstart, seqlen, cu_seqlens,
 * block_scale_seqstart); the data of all other arrays must stay until the stream has run the call. With max_seqlen_q and max_seqlen_k
 * index arrays of a device whose memory the host may not read are data like the others: contiguous, and read by the kernels. */
typedef struct tilekiln_fmha_fwd_args {
  size_t size; /* sizeof(tilekiln_fmha_fwd_args): set by tilekiln_fmha_fwd_defaults */
  const tilekiln_tensor* q; /* fp32, fp16, bf16, fp8, fp8fnuz or bf8fnuz (batch, seqlen_q, nhead_q, hdim_q), group: (total_q, nhead_q, hdim_q).
     Queries */
  const tilekiln_tensor* k; /* dtype of q (batch, seqlen_k, nhead_k, hdim_q), group: (total_k, nhead_k, hdim_q). Keys */
  const tilekiln_tensor* v; /* dtype of q (batch, seqlen_k, nhead_k, hdim_v), group: (total_k, nhead_k, hdim_v). Values */
  const tilekiln_tensor* out; /* dtype of q; of fp8: bf16 or fp32; of fp8fnuz: bf16; of bf8fnuz: bf16 (batch, seqlen_q, nhead_q, hdim_v), group:
     (total_q, nhead_q, hdim_v). The weighted values */
  const tilekiln_tensor* lse; /* fp32 (batch, nhead_q, seqlen_q), group: (nhead_q, total_q); or null. Natural log of the sum of exponentials; -inf for
     a row that sees no key */
  const tilekiln_tensor* bias; /* dtype of out (1|batch, 1|nhead_q, seqlen_q, seqlen_k), group: (1|nhead_q, total_q, max_seqlen_k); or null. Added
     after the scale */
  const tilekiln_tensor* alibi_slopes; /* fp32 (nhead_q) or (batch, nhead_q); or null. Adds -slope |i + shift - j| */
  const tilekiln_tensor* sink; /* fp32 (nhead_q); or null. One more logit per head that takes part in the softmax and has no value */
  const tilekiln_tensor* q_descale; /* fp32; or null. Of one element (pertensor, all three) or per block of 128 rows: (batch, nhead_q, blocks), group:
     (nhead_q, total blocks) with block_scale_seqstart_q */
  const tilekiln_tensor* k_descale; /* fp32; or null. Of one element, or (batch, nhead_k, blocks), group: (nhead_k, total blocks) with
     block_scale_seqstart_k */
  const tilekiln_tensor* v_descale; /* fp32; or null. As k_descale */
  const tilekiln_tensor* block_scale_seqstart_q; /* int32 (batch + 1); or null. The first block of each sequence in q_descale */
  const tilekiln_tensor* block_scale_seqstart_k; /* int32 (batch + 1); or null. The first block of each sequence in k_descale and v_descale */
  const tilekiln_tensor* seqstart_q; /* int32 (batch + 1); or null. Group mode: the physical start of each sequence in the total dimension */
  const tilekiln_tensor* seqstart_k; /* int32 (batch + 1); or null. Group mode: the same of k and v */
  const tilekiln_tensor* seqlen_q; /* int32 (batch); or null. Logical lengths; not with cu_seqlens_q */
  const tilekiln_tensor* seqlen_k; /* int32 (batch); or null. Logical lengths; not with cu_seqlens_k */
  const tilekiln_tensor* cu_seqlens_q; /* int32 (batch + 1); or null. Cumulative logical lengths; in group mode without seqstart_q also the physical
     starts */
  const tilekiln_tensor* cu_seqlens_k; /* int32 (batch + 1); or null. The same of k and v */
  int32_t max_seqlen_q; /* above 0: no sequence has more queries, and index arrays on a device whose memory the host may not read stay there, neither
     copied nor checked; 0: the host reads them */
  int32_t max_seqlen_k; /* the same of keys (of a cache: of those that are attended to), with max_seqlen_q */
  const tilekiln_tensor* randval; /* uint8 (batch, nhead_q, seqlen_q, seqlen_k), group: (nhead_q, total_q, max_seqlen_k); or null. The random bytes of
     dropout */
  const float* softmax_scale; /* null: 1 / sqrt(hdim_q) */
  float softcap; /* s' = softcap tanh(s / softcap), not with a bias; 0: off */
  float dropout_p; /* the probability that a weight is dropped */
  uint64_t rng_seed, rng_offset; /* of dropout's Philox-4x32-7 */
  int32_t causal; /* 0 or 1. yes: window_right = 0 */
  int32_t window_left, window_right; /* row i sees keys [i + shift - left, i + shift + right]; -1: unbounded */
  int32_t mask_origin; /* 0 (bottom_right) or 1 (top_left). bottom_right: shift = seqlen_k - seqlen_q; top_left: shift = 0 */
  int32_t sink_size; /* the first keys that stay visible whatever the left window says */
  int32_t min_seqlen_q; /* sequences with seqlen_q <= min_seqlen_q are skipped, their outputs left untouched; 0: off */
  int32_t layout; /* 0 (bshd) or 1 (bhsd). The order of the two middle dimensions */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_fmha_fwd_args;

/* All fields absent, windows unbounded, instance -1. Then set q, k, v, out and what else is wanted. */
static inline tilekiln_fmha_fwd_args tilekiln_fmha_fwd_defaults(void) {
  TILEKILN_ZEROED(tilekiln_fmha_fwd_args, args);
  args.window_left = -1;
  args.window_right = -1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_fmha_fwd(const tilekiln_fmha_fwd_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_find(const tilekiln_fmha_fwd_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_why(const tilekiln_fmha_fwd_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
