/* SPDX-License-Identifier: MIT */
/* fmha_fwd_appendkv.h - Made by `python -m codegen operators --write` from kernels/attention/fmha_fwd_appendkv/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_FMHA_FWD_APPENDKV_H
#define TILEKILN_OPERATORS_FMHA_FWD_APPENDKV_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Writes new keys and values into a cache in place, rotates them and q, and, when out is given, attends over the grown cache as fmha_fwd_splitkv
 * does. Batch mode only.
 *
 * New key j of a sequence lands at seqlen_k + j of its cache and is rotated for position seqlen_k + j; query i for seqlen_k + i when there is a mask
 * (causal or a window), else all of a sequence for seqlen_k. Rotation of a pair (x0, x1) at position p:
 * (x0 cos[p] - x1 sin[p], x1 cos[p] + x0 sin[p]). (Su et al., "RoFormer", 2021.) With q_gamma and k_gamma each head of q and of the new keys is
 * first normalised as rmsnorm2d does it, and rounded: on CPUs the bits are those of rmsnorm2d before this call. Refused by AMD GPUs, and of fp8.
 *
 * The cache and what is said of the attention are as in fmha_fwd_splitkv; without out they must be absent. The mask also says which positions
 * queries have, with or without out. cache_leftpad is of the attention: the append and the rotation count from the start of the cache.
 * No page, and no sequence of the cache, may be written for two sequences. */
typedef struct tilekiln_fmha_fwd_appendkv_args {
  size_t size; /* sizeof(tilekiln_fmha_fwd_appendkv_args): set by tilekiln_fmha_fwd_appendkv_defaults */
  const tilekiln_tensor* q; /* dtype of k (batch, seqlen_q, nhead_q, hdim_q); or null. queries, rotated in place; null: keys only */
  const tilekiln_tensor* k; /* fp32, fp16, bf16 or fp8 (batch_cache, seqlen_k, nhead_k, hdim_q), paged: (pages, page_size, nhead_k, hdim_q). The keys
     of the cache */
  const tilekiln_tensor* v; /* dtype of k (batch_cache, seqlen_k, nhead_k, hdim_v), paged: (pages, page_size, nhead_k, hdim_v). The values of the
     cache */
  const tilekiln_tensor* knew; /* dtype of k (batch, seqlen_new, nhead_k, hdim_q). New keys */
  const tilekiln_tensor* vnew; /* dtype of k (batch, seqlen_new, nhead_k, hdim_v). New values */
  const tilekiln_tensor* out; /* dtype of q (batch, seqlen_q, nhead_q, hdim_v); or null. The weighted values; null: no attention */
  const tilekiln_tensor* lse; /* fp32 (batch, nhead_q, seqlen_q); or null. As in fmha_fwd_splitkv */
  const tilekiln_tensor* bias; /* dtype of out; of fp8: fp32 (1|batch, 1|nhead_q, seqlen_q, max_seqlen_k); or null. As in fmha_fwd_splitkv */
  const tilekiln_tensor* alibi_slopes; /* fp32 (nhead_q) or (batch, nhead_q); or null. As in fmha_fwd_splitkv */
  const tilekiln_tensor* sink; /* fp32 (nhead_q); or null. As in fmha_fwd_splitkv */
  const tilekiln_tensor* q_descale; /* fp32; or null. As in fmha_fwd_splitkv */
  const tilekiln_tensor* k_descale; /* fp32; or null. As in fmha_fwd_splitkv */
  const tilekiln_tensor* v_descale; /* fp32; or null. As in fmha_fwd_splitkv */
  const tilekiln_tensor* out_scale; /* fp32; or null. As in fmha_fwd_splitkv */
  const tilekiln_tensor* seqlen_k; /* int32 (batch). The lengths before the append */
  const tilekiln_tensor* rotary_cos; /* fp32 (positions, rotary_dim / 2); or null. Or of the dtype of k; null, with rotary_sin: no rotation */
  const tilekiln_tensor* rotary_sin; /* dtype of rotary_cos (positions, rotary_dim / 2); or null. As rotary_cos */
  const tilekiln_tensor* block_table; /* int32 (batch, max_blocks); or null. The pages of each sequence; null: a contiguous cache */
  const tilekiln_tensor* cache_batch_idx; /* int32 (batch); or null. As in fmha_fwd_splitkv */
  const tilekiln_tensor* cache_leftpad; /* int32 (batch); or null. As in fmha_fwd_splitkv */
  const float* softmax_scale; /* null: 1 / sqrt(hdim_q) */
  float softcap; /* as in fmha_fwd_splitkv */
  int32_t causal; /* 0 or 1. yes: window_right = 0 */
  int32_t window_left, window_right; /* row i sees keys [i + shift - left, i + shift + right]; -1: unbounded */
  int32_t mask_origin; /* 0 (bottom_right) or 1 (top_left). bottom_right: shift = seqlen_k - seqlen_q; top_left: shift = 0 */
  int32_t sink_size; /* the first keys that stay visible whatever the left window says */
  int32_t max_seqlen_k; /* above 0: no sequence grows to more keys, and index arrays on a device whose memory the host may not read stay there,
     neither copied nor checked; 0: the host reads them */
  int32_t rotary_interleaved; /* 0 or 1. yes: pairs (2i, 2i + 1); no: pairs (i, i + rotary_dim / 2) */
  int32_t num_splits; /* as in fmha_fwd_splitkv */
  int32_t layout; /* 0 (bshd) or 1 (bhsd). The order of the two middle dimensions */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
  const tilekiln_tensor* q_gamma; /* fp32 (hdim_q); or null. Or of the dtype of k: factors of an RMS norm of each head of q before it is rotated;
     null, with k_gamma: none */
  const tilekiln_tensor* k_gamma; /* dtype of q_gamma (hdim_q); or null. The same of the new keys */
  float norm_epsilon; /* added to the mean square of a head */
  int32_t norm_rounding; /* 0 (pytorch) or 1 (transformers). transformers: a head over its root mean square is rounded to its dtype before it is
     multiplied */
} tilekiln_fmha_fwd_appendkv_args;

/* rotary_interleaved 1, as in flash_attn. */
static inline tilekiln_fmha_fwd_appendkv_args tilekiln_fmha_fwd_appendkv_defaults(void) {
  TILEKILN_ZEROED(tilekiln_fmha_fwd_appendkv_args, args);
  args.window_left = -1;
  args.window_right = -1;
  args.rotary_interleaved = 1;
  args.instance = -1;
  args.norm_epsilon = 1e-06f;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_fmha_fwd_appendkv(const tilekiln_fmha_fwd_appendkv_args* args);
/* Questions about a call (base.h): instances of fmha_fwd_appendkv, fmha_fwd_splitkv, fmha_fwd_splitkv_combine, -1 for a stage that it does not need. */
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_appendkv_find(const tilekiln_fmha_fwd_appendkv_args* args, int64_t instances[3]);
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_appendkv_why(const tilekiln_fmha_fwd_appendkv_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
