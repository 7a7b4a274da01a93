/* SPDX-License-Identifier: MIT */
/* fmha_batch_prefill.h - Made by `python -m codegen operators --write` from kernels/attention/fmha_batch_prefill/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_FMHA_BATCH_PREFILL_H
#define TILEKILN_OPERATORS_FMHA_BATCH_PREFILL_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Attention forward in group mode over a pool of pages as serving engines keep it.
 *
 * The shape of k says how the pool lies, with vec = 16 / (bytes of an element):
 *   linear      k (pages, page_size, nhead_k, hdim_q), v (pages, page_size, nhead_k, hdim_v); or of page_size 1: (tokens, nhead_k, hdim)
 *   vectorized  k (pages, nhead_k, hdim_q / vec, page_size, vec), v (pages, nhead_k, page_size / vec, hdim_v, vec); the last two dimensions packed
 * page_size is a power of two; vectorized: a multiple of vec. Either kv_indptr, kv_page_indices and kv_last_page_lens say where keys are (as sglang
 * keeps
 * them) and seqlen_k = (pages - 1) page_size + last, or block_table and seqlen_k do (as vllm keeps them).
 * Page numbers past the last page of a sequence, and of pages that its mask hides from every query, are not read. */
typedef struct tilekiln_fmha_batch_prefill_args {
  size_t size; /* sizeof(tilekiln_fmha_batch_prefill_args): set by tilekiln_fmha_batch_prefill_defaults */
  const tilekiln_tensor* q; /* fp16, bf16 or fp8 (total_q, nhead_q, hdim_q). Queries */
  const tilekiln_tensor* k; /* dtype of q; of bf16: bf16, fp8 or bf8 (pages, page_size, nhead_k, hdim_q), tokens: (pages, nhead_k, hdim_q), vectors:
     (pages, nhead_k, hdim_q / vec, page_size, vec). The keys of the pool */
  const tilekiln_tensor* v; /* dtype of k (pages, page_size, nhead_k, hdim_v), tokens: (pages, nhead_k, hdim_v), vectors: (pages, nhead_k, page_size /
     vec, hdim_v, vec). The values of the pool */
  const tilekiln_tensor* out; /* dtype of q; of fp8: bf16 (total_q, nhead_q, hdim_v). The weighted values */
  const tilekiln_tensor* lse; /* fp32 (nhead_q, total_q); or null. Natural log of the sum of exponentials; -inf for a row that sees no key */
  const tilekiln_tensor* randval; /* uint8 (nhead_q, total_q, max_seqlen_k); or null. The random bytes of dropout */
  const tilekiln_tensor* bias; /* dtype of out (1|nhead_q, total_q, max_seqlen_k) or (total_q, max_seqlen_k); or null. Added after the scale */
  const tilekiln_tensor* alibi_slopes; /* fp32 (nhead_q) or (batch, nhead_q); or null. Adds -slope |i + shift - j| */
  const tilekiln_tensor* sink; /* fp32 (nhead_q); or null. One more logit per head that takes part in the softmax and has no value */
  const tilekiln_tensor* q_descale; /* fp32; or null. Of one element, for fp8; null: 1 */
  const tilekiln_tensor* k_descale; /* fp32; or null. Of one element, for fp8 and bf8 keys; null: 1 */
  const tilekiln_tensor* v_descale; /* fp32; or null. Of one element, for fp8 and bf8 values; null: 1 */
  const tilekiln_tensor* kv_block_descale; /* fp32 (pages, nhead_k, 2); or null. The scale of k and the scale of v of each page and head; not with
     k_descale and v_descale, page_size a multiple of 128 */
  const tilekiln_tensor* cu_seqlens_q; /* int32 (batch + 1). The first row of each sequence */
  const tilekiln_tensor* kv_indptr; /* int32 (batch + 1); or null. The pages of sequence b are kv_page_indices[kv_indptr[b] ... kv_indptr[b + 1] - 1] */
  const tilekiln_tensor* kv_page_indices; /* int32 (entries); or null. Page numbers, kv_indptr[batch] of them or more */
  const tilekiln_tensor* kv_last_page_lens; /* int32 (batch); or null. The keys in the last page of each sequence, 1 to page_size; null with page_size
     1 */
  const tilekiln_tensor* block_table; /* int32 (batch, max_blocks); or null. The pages of each sequence */
  const tilekiln_tensor* seqlen_k; /* int32 (batch); or null. The keys of each sequence, with block_table */
  const float* softmax_scale; /* null: 1 / sqrt(hdim_q) */
  float softcap; /* s' = softcap tanh(s / softcap), not with a bias; 0: off */
  float dropout_p; /* the probability that a weight is dropped */
  uint64_t rng_seed, rng_offset; /* of dropout's Philox-4x32-7 */
  int32_t causal; /* 0 or 1. yes: window_right = 0 */
  int32_t window_left, window_right; /* row i sees keys [i + shift - left, i + shift + right]; -1: unbounded */
  int32_t mask_origin; /* 0 (bottom_right) or 1 (top_left). bottom_right: shift = seqlen_k - seqlen_q; top_left: shift = 0 */
  int32_t sink_size; /* the first keys that stay visible whatever the left window says */
  int32_t max_seqlen_q; /* above 0: no sequence has more queries, and index arrays on a device whose memory the host may not read stay there, neither
     copied nor checked; 0: the host reads them */
  int32_t max_seqlen_k; /* the same of keys (of a cache: of those that are attended to), with max_seqlen_q */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_fmha_batch_prefill_args;

static inline tilekiln_fmha_batch_prefill_args tilekiln_fmha_batch_prefill_defaults(void) {
  TILEKILN_ZEROED(tilekiln_fmha_batch_prefill_args, args);
  args.window_left = -1;
  args.window_right = -1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_fmha_batch_prefill(const tilekiln_fmha_batch_prefill_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_fmha_batch_prefill_find(const tilekiln_fmha_batch_prefill_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_fmha_batch_prefill_why(const tilekiln_fmha_batch_prefill_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
