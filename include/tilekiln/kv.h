/* kv.h - the part of the C ABI that attends over KV caches: split-KV, paged, append and batch prefill.
 *
 * Part of tilekiln.h, which includes it; include that. */
#ifndef TILEKILN_KV_H
#define TILEKILN_KV_H

#include "tilekiln/tilekiln.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the four families below have in common.
 *
 * The cache is contiguous: k (batch_cache, seqlen_cache, nhead_k, hdim_q), v alike with hdim_v; group mode (q of 3 dimensions): (total_k, nhead_k, hdim).
 * Or it is a pool of pages: k (pages, page_size, nhead_k, hdim_q), v alike, in both modes. With TILEKILN_BHSD the dimensions of tokens and heads are
 * exchanged, in q and out too. block_table (int32, (batch, max_blocks)) says which page holds the keys [i page_size, (i + 1) page_size) of a sequence.
 *
 * seqlen_k (or cu_seqlens_k) counts the keys of each sequence from the start of its cache, cache_leftpad of them not being keys: those that are
 * attended to are [cache_leftpad, seqlen_k). Absent, the cache is full. Masks and biases count keys from the first that is attended to.
 * Entries of block_table, kv_page_indices past the last page of a sequence, and of pages that its mask hides from every query, are not read. All index
 * arrays are int32 and read before the call returns.
 * lse is as in the forward: (batch, nhead_q, seqlen_q), group mode (nhead_q, total_q).
 *
 * A cache, its queries and out of one dtype: fp32, fp16, bf16 or fp8. fp8 is scaled: softmax_scale q_descale k_descale q k^T, out multiplied by
 * v_descale and out_scale, rounded to nearest even, saturated. A scale that is null is 1. */

/* tilekiln_fmha_fwd with the keys of every sequence cut into num_splits parts that run side by side, and put together by a second stage:
 * out = sum_s exp(lse_s - L) out_s, L = ln sum_s exp(lse_s). Part s holds the keys [s per, (s + 1) per), per = max(1, ceil(seqlen_k / num_splits)).
 * (Dao et al., "Flash-Decoding for long-context inference", 2023.) */
typedef struct tilekiln_fmha_fwd_splitkv_args {
  size_t size; /* sizeof(tilekiln_fmha_fwd_splitkv_args): set by tilekiln_fmha_fwd_splitkv_defaults */
  const tilekiln_tensor* q; /* fp32, fp16, bf16 or fp8; shapes of q and out as in the forward */
  const tilekiln_tensor* k; /* the cache: dtype of q */
  const tilekiln_tensor* v;
  const tilekiln_tensor* out; /* dtype of q */
  const tilekiln_tensor* lse; /* fp32, or null */
  const tilekiln_tensor* bias; /* dtype of out (fp32 for fp8), as in the forward, but the last dimension is at least the longest sequence of keys */
  const tilekiln_tensor* alibi_slopes; /* fp32, as in the forward */
  const tilekiln_tensor* sink;
  const tilekiln_tensor* q_descale; /* fp32, one element, for fp8 only */
  const tilekiln_tensor* k_descale;
  const tilekiln_tensor* v_descale;
  const tilekiln_tensor* out_scale;
  const tilekiln_tensor* seqstart_q; /* int32 (batch + 1), group mode: as in the forward */
  const tilekiln_tensor* seqstart_k; /* group mode; with is_gappy (batch): the first key of each sequence within its pages */
  const tilekiln_tensor* seqlen_q;
  const tilekiln_tensor* seqlen_k;
  const tilekiln_tensor* cu_seqlens_q;
  const tilekiln_tensor* cu_seqlens_k;
  const tilekiln_tensor* block_table; /* int32 (batch, max_blocks), or null: a contiguous cache */
  const tilekiln_tensor* cache_batch_idx; /* int32 (batch), batch mode: the sequence of the cache, or the row of block_table (which may have more or
                                             fewer rows), of each sequence of q. Null: its own number */
  const tilekiln_tensor* cache_leftpad; /* int32 (batch), batch mode: the first key of each sequence. Null: 0 */
  const float* softmax_scale; /* null: 1 / sqrt(hdim_q) */
  float softcap; /* these as in the forward */
  int32_t causal;
  int32_t window_left, window_right;
  int32_t mask_origin;
  int32_t sink_size;
  int32_t is_gappy; /* 1 (group mode with block_table): seqlen_k are the lengths and seqstart_k (batch) local offsets */
  int32_t num_splits; /* 1 to 128; 0: chosen from the sizes and the threads */
  int32_t layout;
  int32_t num_threads;
  int64_t instance; /* of fmha_fwd_splitkv; -1: the dispatcher chooses. The other stage is always chosen */
  tilekiln_stream* stream;
  const tilekiln_executor* executor;
} tilekiln_fmha_fwd_splitkv_args;

static inline tilekiln_fmha_fwd_splitkv_args tilekiln_fmha_fwd_splitkv_defaults(void) {
  tilekiln_fmha_fwd_splitkv_args args;
  memset(&args, 0, sizeof(args));
  args.size = sizeof(args);
  args.window_left = -1;
  args.window_right = -1;
  args.instance = -1;
  return args;
}

/* The stages of a split-KV call, in the order they run. They are planned together: one without the other is NO_KERNEL. */
enum { TILEKILN_SPLITKV_SPLIT = 0, TILEKILN_SPLITKV_COMBINE = 1, TILEKILN_SPLITKV_STAGES = 2 };

TILEKILN_API tilekiln_status tilekiln_fmha_fwd_splitkv(const tilekiln_fmha_fwd_splitkv_args* args);
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_splitkv_find(const tilekiln_fmha_fwd_splitkv_args* args, int64_t instances[TILEKILN_SPLITKV_STAGES]);
/* As tilekiln_fmha_fwd_why, one paragraph a stage. */
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_splitkv_why(const tilekiln_fmha_fwd_splitkv_args* args, char* text, size_t capacity, size_t* length);
/* The num_splits that this very call would use. */
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_splitkv_num_splits(const tilekiln_fmha_fwd_splitkv_args* args, int32_t* num_splits);

/* tilekiln_fmha_fwd over a pool of pages, in one stage: prefill against a cache. */
typedef struct tilekiln_fmha_fwd_pagedkv_args {
  size_t size; /* sizeof(tilekiln_fmha_fwd_pagedkv_args): set by tilekiln_fmha_fwd_pagedkv_defaults */
  const tilekiln_tensor* q; /* all as in tilekiln_fmha_fwd_splitkv_args */
  const tilekiln_tensor* k;
  const tilekiln_tensor* v;
  const tilekiln_tensor* out;
  const tilekiln_tensor* bias;
  const tilekiln_tensor* alibi_slopes;
  const tilekiln_tensor* sink;
  const tilekiln_tensor* q_descale;
  const tilekiln_tensor* k_descale;
  const tilekiln_tensor* v_descale;
  const tilekiln_tensor* out_scale;
  const tilekiln_tensor* seqstart_q;
  const tilekiln_tensor* seqstart_k;
  const tilekiln_tensor* seqlen_q;
  const tilekiln_tensor* seqlen_k;
  const tilekiln_tensor* cu_seqlens_q;
  const tilekiln_tensor* cu_seqlens_k;
  const tilekiln_tensor* block_table; /* required */
  const tilekiln_tensor* cache_batch_idx;
  const tilekiln_tensor* cache_leftpad;
  const float* softmax_scale;
  float softcap;
  int32_t causal;
  int32_t window_left, window_right;
  int32_t mask_origin;
  int32_t sink_size;
  int32_t is_gappy;
  int32_t layout;
  int32_t num_threads;
  int64_t instance;
  tilekiln_stream* stream;
  const tilekiln_executor* executor;
} tilekiln_fmha_fwd_pagedkv_args;

static inline tilekiln_fmha_fwd_pagedkv_args tilekiln_fmha_fwd_pagedkv_defaults(void) {
  tilekiln_fmha_fwd_pagedkv_args args;
  memset(&args, 0, sizeof(args));
  args.size = sizeof(args);
  args.window_left = -1;
  args.window_right = -1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_fmha_fwd_pagedkv(const tilekiln_fmha_fwd_pagedkv_args* args);
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_pagedkv_find(const tilekiln_fmha_fwd_pagedkv_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_pagedkv_why(const tilekiln_fmha_fwd_pagedkv_args* args, char* text, size_t capacity, size_t* length);

/* Writes new keys and values into the cache in place, rotates them and q, and, when out is given, attends over the grown cache as
 * tilekiln_fmha_fwd_splitkv does. Batch mode only. New key j of a sequence lands at seqlen_k + j of its cache and is rotated for position seqlen_k + j;
 * query i for seqlen_k + i when there is a mask (causal or a window), else all of a sequence for seqlen_k. Rotation of a pair (x0, x1) at position p:
 * (x0 cos[p] - x1 sin[p], x1 cos[p] + x0 sin[p]). (Su et al., "RoFormer", 2021.) */
typedef struct tilekiln_fmha_fwd_appendkv_args {
  size_t size; /* sizeof(tilekiln_fmha_fwd_appendkv_args): set by tilekiln_fmha_fwd_appendkv_defaults */
  const tilekiln_tensor* q; /* (batch, seqlen_q, nhead_q, hdim_q), rotated in place. Null: keys only; required with out */
  const tilekiln_tensor* k; /* the cache, written: fp32, fp16, bf16 or fp8 */
  const tilekiln_tensor* v;
  const tilekiln_tensor* knew; /* (batch, seqlen_new, nhead_k, hdim_q), dtype of k */
  const tilekiln_tensor* vnew; /* (batch, seqlen_new, nhead_k, hdim_v) */
  const tilekiln_tensor* out; /* null: no attention. This and the following as in tilekiln_fmha_fwd_splitkv_args; without out they must be absent */
  const tilekiln_tensor* lse;
  const tilekiln_tensor* bias;
  const tilekiln_tensor* alibi_slopes;
  const tilekiln_tensor* sink;
  const tilekiln_tensor* q_descale;
  const tilekiln_tensor* k_descale;
  const tilekiln_tensor* v_descale;
  const tilekiln_tensor* out_scale;
  const tilekiln_tensor* seqlen_k; /* int32 (batch): the lengths before the append. Required */
  const tilekiln_tensor* rotary_cos; /* (positions, rotary_dim / 2), dtype of q or fp32. Null, with rotary_sin: no rotation */
  const tilekiln_tensor* rotary_sin; /* shape and dtype of rotary_cos */
  const tilekiln_tensor* block_table; /* int32 (batch, max_blocks), or null. No page may be written for two sequences */
  const tilekiln_tensor* cache_batch_idx; /* must not name one sequence of the cache twice */
  const tilekiln_tensor* cache_leftpad; /* of the attention; the append and the rotation count from the start of the cache */
  const float* softmax_scale;
  float softcap;
  int32_t causal; /* the mask also says which positions queries have, with or without out */
  int32_t window_left, window_right;
  int32_t mask_origin;
  int32_t sink_size;
  int32_t rotary_interleaved; /* 1: pairs (2i, 2i + 1). 0: pairs (i, i + rotary_dim / 2) */
  int32_t num_splits;
  int32_t layout;
  int32_t num_threads;
  int64_t instance; /* of fmha_fwd_appendkv; -1: the dispatcher chooses. The other stages are always chosen */
  tilekiln_stream* stream;
  const tilekiln_executor* executor;
} tilekiln_fmha_fwd_appendkv_args;

/* rotary_interleaved 1, as in flash_attn. */
static inline tilekiln_fmha_fwd_appendkv_args tilekiln_fmha_fwd_appendkv_defaults(void) {
  tilekiln_fmha_fwd_appendkv_args args;
  memset(&args, 0, sizeof(args));
  args.size = sizeof(args);
  args.window_left = -1;
  args.window_right = -1;
  args.rotary_interleaved = 1;
  args.instance = -1;
  return args;
}

/* The stages of an append; -1 from find for those of the attention when there is none. */
enum { TILEKILN_APPENDKV_APPEND = 0, TILEKILN_APPENDKV_SPLIT = 1, TILEKILN_APPENDKV_COMBINE = 2, TILEKILN_APPENDKV_STAGES = 3 };

TILEKILN_API tilekiln_status tilekiln_fmha_fwd_appendkv(const tilekiln_fmha_fwd_appendkv_args* args);
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_appendkv_find(const tilekiln_fmha_fwd_appendkv_args* args, int64_t instances[TILEKILN_APPENDKV_STAGES]);
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_appendkv_why(const tilekiln_fmha_fwd_appendkv_args* args, char* text, size_t capacity, size_t* length);

/* tilekiln_fmha_fwd in group mode over a pool of pages as serving engines keep it. The shape of k says its layout, with vec = 16 / (bytes of an element):
 *   linear      k (pages, page_size, nhead_k, hdim_q), v (pages, page_size, nhead_k, hdim_v); or of page_size 1: (tokens, nhead_k, hdim)
 *   vectorized  k (pages, nhead_k, hdim_q / vec, page_size, vec), v (pages, nhead_k, page_size / vec, hdim_v, vec); the last two dimensions packed
 * page_size is a power of two; vectorized: a multiple of vec. Either kv_indptr, kv_page_indices and kv_last_page_lens say where keys are (as sglang keeps
 * them) and seqlen_k = (pages - 1) page_size + last, or block_table and seqlen_k do (as vllm keeps them). */
typedef struct tilekiln_fmha_batch_prefill_args {
  size_t size; /* sizeof(tilekiln_fmha_batch_prefill_args): set by tilekiln_fmha_batch_prefill_defaults */
  const tilekiln_tensor* q; /* (total_q, nhead_q, hdim_q): fp16, bf16 or fp8 */
  const tilekiln_tensor* k; /* dtype of q; or fp8 with a bf16 q */
  const tilekiln_tensor* v; /* dtype of k */
  const tilekiln_tensor* out; /* (total_q, nhead_q, hdim_v): dtype of q; bf16 for fp8 */
  const tilekiln_tensor* lse; /* fp32 (nhead_q, total_q), or null */
  const tilekiln_tensor* randval; /* uint8 (nhead_q, total_q, at least the longest seqlen_k), or null */
  const tilekiln_tensor* bias; /* dtype of out, (1|nhead_q, total_q, at least the longest seqlen_k) or (total_q, at least the longest seqlen_k) */
  const tilekiln_tensor* alibi_slopes; /* fp32 (nhead_q) or (batch, nhead_q) */
  const tilekiln_tensor* sink; /* fp32 (nhead_q) */
  const tilekiln_tensor* q_descale; /* fp32, one element, for an fp8 q. Null: 1 */
  const tilekiln_tensor* k_descale; /* fp32, one element, for fp8 keys; not with kv_block_descale. Null: 1 */
  const tilekiln_tensor* v_descale;
  const tilekiln_tensor* kv_block_descale; /* fp32 (pages, nhead_k, 2), for fp8 keys: the scale of k, the scale of v. page_size a multiple of 128 */
  const tilekiln_tensor* cu_seqlens_q; /* int32 (batch + 1): required */
  const tilekiln_tensor* kv_indptr; /* int32 (batch + 1): the pages of sequence b are kv_page_indices[kv_indptr[b] ... kv_indptr[b + 1] - 1] */
  const tilekiln_tensor* kv_page_indices; /* int32, at least kv_indptr[batch] entries */
  const tilekiln_tensor* kv_last_page_lens; /* int32 (batch): 1 to page_size. Null with page_size 1 */
  const tilekiln_tensor* block_table; /* int32 (batch, max_blocks) */
  const tilekiln_tensor* seqlen_k; /* int32 (batch), with block_table */
  const float* softmax_scale; /* null: 1 / sqrt(hdim_q) */
  float softcap;
  float dropout_p;
  uint64_t rng_seed, rng_offset;
  int32_t causal;
  int32_t window_left, window_right;
  int32_t mask_origin;
  int32_t sink_size;
  int32_t num_threads;
  int64_t instance;
  tilekiln_stream* stream;
  const tilekiln_executor* executor;
} tilekiln_fmha_batch_prefill_args;

static inline tilekiln_fmha_batch_prefill_args tilekiln_fmha_batch_prefill_defaults(void) {
  tilekiln_fmha_batch_prefill_args args;
  memset(&args, 0, sizeof(args));
  args.size = sizeof(args);
  args.window_left = -1;
  args.window_right = -1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_fmha_batch_prefill(const tilekiln_fmha_batch_prefill_args* args);
TILEKILN_API tilekiln_status tilekiln_fmha_batch_prefill_find(const tilekiln_fmha_batch_prefill_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_fmha_batch_prefill_why(const tilekiln_fmha_batch_prefill_args* args, char* text, size_t capacity, size_t* length);

#ifdef __cplusplus
}
#endif
#endif
