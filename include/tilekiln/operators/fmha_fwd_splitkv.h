/* SPDX-License-Identifier: MIT */
/* fmha_fwd_splitkv.h - Made by `python -m codegen operators --write` from kernels/attention/fmha_fwd_splitkv/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_FMHA_FWD_SPLITKV_H
#define TILEKILN_OPERATORS_FMHA_FWD_SPLITKV_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Attention over a KV cache, the keys of each sequence cut into num_splits parts that run side by side, and put together by a second stage: decode.
 *
 * out = sum_s exp(lse_s - L) out_s, L = ln sum_s exp(lse_s). Part s holds the keys [s per, (s + 1) per), per = max(1, ceil(seqlen_k / num_splits)).
 * (Dao et al., "Flash-Decoding for long-context inference", 2023.)
 *
 * The cache is contiguous: k (batch_cache, seqlen_cache, nhead_k, hdim_q), v alike with hdim_v; group mode (q of 3 dimensions): (total_k, nhead_k,
 * hdim).
 * Or it is a pool of pages: k (pages, page_size, nhead_k, hdim_q), v alike, in both modes. With layout bhsd the dimensions of tokens and heads are
 * exchanged, in q and out too. block_table says which page holds the keys [i page_size, (i + 1) page_size) of a sequence.
 *
 * seqlen_k (or cu_seqlens_k) counts the keys of each sequence from the start of its cache, cache_leftpad of them not being keys: those that are
 * attended to are [cache_leftpad, seqlen_k). Absent, the cache is full. Masks and biases count keys from the first that is attended to.
 * Entries of block_table past the last page of a sequence, and of pages that its mask hides from every query, are not read. All index
 * arrays are int32 and read before the call returns, unless max_seqlen_q and max_seqlen_k leave those of a device where they are.
 *
 * A cache, its queries and out are of one dtype. fp8 is scaled: softmax_scale q_descale k_descale q k^T, out multiplied by
 * v_descale and out_scale, rounded to nearest even, saturated. */
typedef struct tilekiln_fmha_fwd_splitkv_args {
  size_t size; /* sizeof(tilekiln_fmha_fwd_splitkv_args): set by tilekiln_fmha_fwd_splitkv_defaults */
  const tilekiln_tensor* q; /* fp32, fp16, bf16 or fp8 (batch, seqlen_q, nhead_q, hdim_q), group: (total_q, nhead_q, hdim_q). Queries */
  const tilekiln_tensor* k; /* dtype of q (batch_cache, seqlen_k, nhead_k, hdim_q), group: (total_k, nhead_k, hdim_q), batch_paged: (pages, page_size,
     nhead_k, hdim_q). The keys of the cache */
  const tilekiln_tensor* v; /* dtype of q (batch_cache, seqlen_k, nhead_k, hdim_v), group: (total_k, nhead_k, hdim_v), batch_paged: (pages, page_size,
     nhead_k, hdim_v). The values of the cache */
  const tilekiln_tensor* out; /* dtype of q (batch, seqlen_q, nhead_q, hdim_v), group: (total_q, nhead_q, hdim_v). The weighted values */
  const tilekiln_tensor* lse; /* fp32 (batch, nhead_q, seqlen_q), group: (nhead_q, total_q); or null. Natural log of the sum of exponentials; -inf for
     a row that sees no key */
  const tilekiln_tensor* bias; /* dtype of out; of fp8: fp32 (1|batch, 1|nhead_q, seqlen_q, max_seqlen_k), group: (1|nhead_q, total_q, max_seqlen_k);
     or null. Added after the scale */
  const tilekiln_tensor* alibi_slopes; /* fp32 (nhead_q) or (batch, nhead_q); or null. Adds -slope |i + shift - j| */
  const tilekiln_tensor* sink; /* fp32 (nhead_q); or null. One more logit per head that takes part in the softmax and has no value */
  const tilekiln_tensor* q_descale; /* fp32; or null. Of one element, for fp8; null: 1 */
  const tilekiln_tensor* k_descale; /* fp32; or null. Of one element, for fp8 keys; null: 1 */
  const tilekiln_tensor* v_descale; /* fp32; or null. Of one element, for fp8 values; null: 1 */
  const tilekiln_tensor* out_scale; /* fp32; or null. Of one element, what an fp8 out is multiplied by; null: 1 */
  const tilekiln_tensor* seqstart_q; /* int32 (batch + 1); or null. Group mode: the physical start of each sequence in the total dimension */
  const tilekiln_tensor* seqstart_k; /* int32 (batch + 1); or null. Group mode: the same of k and v */
  const tilekiln_tensor* seqlen_q; /* int32 (batch); or null. Logical lengths; not with cu_seqlens_q */
  const tilekiln_tensor* seqlen_k; /* int32 (batch); or null. Logical lengths; not with cu_seqlens_k */
  const tilekiln_tensor* cu_seqlens_q; /* int32 (batch + 1); or null. Cumulative logical lengths; in group mode without seqstart_q also the physical
     starts */
  const tilekiln_tensor* cu_seqlens_k; /* int32 (batch + 1); or null. The same of k and v */
  const tilekiln_tensor* block_table; /* int32 (batch, max_blocks); or null. The pages of each sequence; null: a contiguous cache */
  const tilekiln_tensor* cache_batch_idx; /* int32 (batch); or null. Batch mode: the sequence of the cache, or the row of block_table, of each
     sequence of q; null: its own number */
  const tilekiln_tensor* cache_leftpad; /* int32 (batch); or null. Batch mode: the first key of each sequence that is attended to; null: 0 */
  const float* softmax_scale; /* null: 1 / sqrt(hdim_q) */
  float softcap; /* s' = softcap tanh(s / softcap), not with a bias; 0: off */
  int32_t causal; /* 0 or 1. yes: window_right = 0 */
  int32_t window_left, window_right; /* row i sees keys [i + shift - left, i + shift + right]; -1: unbounded */
  int32_t mask_origin; /* 0 (bottom_right) or 1 (top_left). bottom_right: shift = seqlen_k - seqlen_q; top_left: shift = 0 */
  int32_t sink_size; /* the first keys that stay visible whatever the left window says */
  int32_t max_seqlen_q; /* above 0: no sequence has more queries, and index arrays on a device whose memory the host may not read stay there, neither
     copied nor checked; 0: the host reads them */
  int32_t max_seqlen_k; /* the same of keys (of a cache: of those that are attended to), with max_seqlen_q */
  int32_t is_gappy; /* 0 or 1. Yes (group mode with block_table): seqlen_k are the lengths and seqstart_k (batch) the first keys */
  int32_t num_splits; /* parts of the keys of a sequence; 0: chosen from the sizes and the threads. Results differ by rounding only */
  int32_t layout; /* 0 (bshd) or 1 (bhsd). The order of the two middle dimensions */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_fmha_fwd_splitkv_args;

static inline tilekiln_fmha_fwd_splitkv_args tilekiln_fmha_fwd_splitkv_defaults(void) {
  TILEKILN_ZEROED(tilekiln_fmha_fwd_splitkv_args, args);
  args.window_left = -1;
  args.window_right = -1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_fmha_fwd_splitkv(const tilekiln_fmha_fwd_splitkv_args* args);
/* Questions about a call (base.h): instances of fmha_fwd_splitkv, fmha_fwd_splitkv_combine, -1 for a stage that it does not need. */
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_splitkv_find(const tilekiln_fmha_fwd_splitkv_args* args, int64_t instances[2]);
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_splitkv_why(const tilekiln_fmha_fwd_splitkv_args* args, char* text, size_t capacity, size_t* length);
/* The number of splits that fmha_fwd_splitkv would use for the same arguments. Runs nothing. */
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_splitkv_num_splits(const tilekiln_fmha_fwd_splitkv_args* args, int32_t* num_splits);

TILEKILN_END_C
#endif
