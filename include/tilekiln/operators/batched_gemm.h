/* SPDX-License-Identifier: MIT */
/* batched_gemm.h - Made by `python -m codegen operators --write` from kernels/gemm/batched_gemm/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_BATCHED_GEMM_H
#define TILEKILN_OPERATORS_BATCHED_GEMM_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* A matrix product for each index of a batch: out[i] = activation(alpha a[i] b[i] + beta c[i] + bias).
 *
 * a (batch, m, k), b (batch, k, n), c and out (batch, m, n), bias (n). Of the last two dimensions of a, b, c and out one stride is 1, the other is
 * anything (0 not of out); the stride of the batch is anything, and 0 shares one matrix. Any length may be 0; with k = 0 or alpha = 0
 * the products are 0 and a and b are not read. With beta = 0 c is not read.
 *
 * fp32, fp16 and bf16 are summed in fp32, in one order: results have the same bits for any number of threads, and are those of gemm's tiles.
 * int8 is summed in int32, modulo 2^32; alpha must then be 1. Special values as in gemm. out may be c itself, element for element; else
 * it may not overlap any other array, nor itself.
 * The structs a pointer here names are read before the call returns; the data of the arrays must stay until the stream has run the call. */
typedef struct tilekiln_batched_gemm_args {
  size_t size; /* sizeof(tilekiln_batched_gemm_args): set by tilekiln_batched_gemm_defaults */
  const tilekiln_tensor* a; /* fp32, fp16, bf16 or int8 (batch, m, k). The left matrices */
  const tilekiln_tensor* b; /* dtype of a (batch, k, n). The right matrices */
  const tilekiln_tensor* out; /* dtype of a; of int8: int32 (batch, m, n). The results */
  const tilekiln_tensor* bias; /* fp32 (n); or null. One number a column */
  float alpha; /* what the product is multiplied by */
  int32_t activation; /* 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh), 4 (silu), 5 (sigmoid), 6 (hardswish) or 7 (clamp). gelu: by erf; gelu_tanh: by
     its approximation with tanh; clamp: to [clamp_min, clamp_max] */
  float clamp_min; /* the least that clamp leaves */
  float clamp_max; /* the most, at least clamp_min */
  const tilekiln_tensor* c; /* dtype of out (batch, m, n); or null. added, beta times; not to int32 */
  float beta; /* what c is multiplied by */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_batched_gemm_args;

/* All fields absent, clamp_min 0, clamp_max 6, alpha and beta 1, instance -1. Then set a, b, out and what else is wanted. */
static inline tilekiln_batched_gemm_args tilekiln_batched_gemm_defaults(void) {
  TILEKILN_ZEROED(tilekiln_batched_gemm_args, args);
  args.alpha = 1.0f;
  args.clamp_max = 6.0f;
  args.beta = 1.0f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_batched_gemm(const tilekiln_batched_gemm_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_batched_gemm_find(const tilekiln_batched_gemm_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_batched_gemm_why(const tilekiln_batched_gemm_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
