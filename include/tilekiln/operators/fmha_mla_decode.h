/* SPDX-License-Identifier: MIT */
/* fmha_mla_decode.h - Made by `python -m codegen operators --write` from kernels/attention/fmha_mla_decode/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_FMHA_MLA_DECODE_H
#define TILEKILN_OPERATORS_FMHA_MLA_DECODE_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Absorbed multi-head latent attention (MLA): every head attends to one latent cache whose rows are key and value: decode.
 *
 * out = softmax(softmax_scale q cache^T, masked) cache[.., :hdim_v]; q (batch, seqlen_q, nhead_q, hdim_q), out (batch, seqlen_q, nhead_q, hdim_v).
 * (DeepSeek-AI, "DeepSeek-V2", 2024: q is the query times the key's up-projection and its rotary part, 512 + 64; out meets the value's up-
 * projection.)
 *
 * The cache is contiguous, (batch, seqlen_k, hdim_q), or with block_table a pool of pages, (pages, page_size, hdim_q): page block_table[b, i] holds
 * the keys [i page_size, (i + 1) page_size) of sequence b. Of a row all hdim_q elements are the key, and the first hdim_v the value. seqlen_k counts
 * the keys of each sequence; absent, the cache is full. Entries of block_table past the last page of a sequence are not read. With causal query i
 * sees the keys up to i + seqlen_k - seqlen_q.
 *
 * softmax_scale is that of the heads before they were absorbed, 1 / sqrt(192) in DeepSeek-V3: null says 1 / sqrt(hdim_q), which is rarely meant.
 *
 * A cache of fp8 has rows of 656 bytes: 512 e4m3, 4 fp32 factors of 128 of them each, 64 bf16. Each of the 512 is multiplied by its factor and
 * rounded to bf16; q is bf16 with hdim_q = 576, hdim_v is 512.
 *
 * Sums are fp32. The keys of a sequence go in num_splits parts, by the sizes alone where that is 0: results have the same bits for any
 * number of threads. Index arrays are int32 and read before the call returns; on a GPU kernels read them, nothing waits for them, and they are
 * not checked: lengths are cut to what there is, and the keys of a page out of the pool are zeros. */
typedef struct tilekiln_fmha_mla_decode_args {
  size_t size; /* sizeof(tilekiln_fmha_mla_decode_args): set by tilekiln_fmha_mla_decode_defaults */
  const tilekiln_tensor* q; /* fp32, fp16 or bf16 (batch, seqlen_q, nhead_q, hdim_q). Absorbed queries */
  const tilekiln_tensor* cache; /* dtype of q; of bf16: bf16 or fp8 (batch_cache, seqlen_k, width), paged: (pages, page_size, width). Rows of the
     latent and the rotary part */
  const tilekiln_tensor* out; /* dtype of q. The weighted values */
  const tilekiln_tensor* lse; /* fp32 (batch, nhead_q, seqlen_q); or null. Natural log of the sum of exponentials; -inf for a row that sees no key */
  const tilekiln_tensor* seqlen_k; /* int32 (batch); or null. The keys of each sequence */
  const tilekiln_tensor* block_table; /* int32 (batch, max_blocks); or null. The pages of each sequence; null: a contiguous cache */
  const float* softmax_scale; /* null: 1 / sqrt(hdim_q) */
  int32_t causal; /* 0 or 1. yes: query i sees the keys up to i + seqlen_k - seqlen_q */
  int32_t hdim_v; /* elements of a row that are the value */
  int32_t num_splits; /* parts of the keys of a sequence. Results differ by rounding only */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_fmha_mla_decode_args;

/* All fields absent, instance -1. Then set q, cache, out, softmax_scale and what else is wanted. */
static inline tilekiln_fmha_mla_decode_args tilekiln_fmha_mla_decode_defaults(void) {
  TILEKILN_ZEROED(tilekiln_fmha_mla_decode_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_fmha_mla_decode(const tilekiln_fmha_mla_decode_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_fmha_mla_decode_find(const tilekiln_fmha_mla_decode_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_fmha_mla_decode_why(const tilekiln_fmha_mla_decode_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
