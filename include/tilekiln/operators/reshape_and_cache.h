/* SPDX-License-Identifier: MIT */
/* reshape_and_cache.h - Made by `python -m codegen operators --write` from kernels/tensor/reshape_and_cache/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_RESHAPE_AND_CACHE_H
#define TILEKILN_OPERATORS_RESHAPE_AND_CACHE_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Writes the keys and values of tokens to their slots of a paged KV cache, as vLLM's function of that name does.
 *
 * knew (tokens, nhead_k, hdim_q), vnew (tokens, nhead_k, hdim_v), k (pages, page_size, nhead_k, hdim_q), v the same of hdim_v. Token t
 * goes to place slot_mapping[t] % page_size of page slot_mapping[t] / page_size. A slot below 0, or past the last page, is none: the
 * token is left out. Of tokens that name one slot any is kept, in each of k and v.
 *
 * A cache of the dtype of knew gets its bytes. One of fp8 (e4m3) or bf8 (e5m2) gets knew / k_scale and vnew / v_scale, divided in fp32,
 * rounded to nearest even; what is beyond the largest number, 448 or 57344, becomes it, and NaN stays NaN.
 *
 * Arrays may have any strides but along a head, which is contiguous: k and v may be halves of one array, and turned to have heads before
 * places. slot_mapping and the scales are read where they lie when the call runs. */
typedef struct tilekiln_reshape_and_cache_args {
  size_t size; /* sizeof(tilekiln_reshape_and_cache_args): set by tilekiln_reshape_and_cache_defaults */
  const tilekiln_tensor* knew; /* dtype of k; of fp8: fp32, fp16 or bf16; of bf8: fp32, fp16 or bf16 (tokens, nhead_k, hdim_q). New keys */
  const tilekiln_tensor* vnew; /* dtype of knew (tokens, nhead_k, hdim_v). New values */
  const tilekiln_tensor* k; /* fp32, fp16, bf16, fp8 or bf8 (pages, page_size, nhead_k, hdim_q). The keys of the cache */
  const tilekiln_tensor* v; /* dtype of k (pages, page_size, nhead_k, hdim_v). The values of the cache */
  const tilekiln_tensor* slot_mapping; /* int64 or int32 (tokens). Of each token page page_size + place */
  const tilekiln_tensor* k_scale; /* fp32; or null. Of one element, what keys are divided by; null: 1 */
  const tilekiln_tensor* v_scale; /* fp32; or null. The same of values */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_reshape_and_cache_args;

/* instance -1, others absent. Then set knew, vnew, k, v and slot_mapping. */
static inline tilekiln_reshape_and_cache_args tilekiln_reshape_and_cache_defaults(void) {
  TILEKILN_ZEROED(tilekiln_reshape_and_cache_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_reshape_and_cache(const tilekiln_reshape_and_cache_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_reshape_and_cache_find(const tilekiln_reshape_and_cache_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_reshape_and_cache_why(const tilekiln_reshape_and_cache_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
