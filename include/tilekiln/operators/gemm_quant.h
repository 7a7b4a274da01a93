/* SPDX-License-Identifier: MIT */
/* gemm_quant.h - Made by `python -m codegen operators --write` from kernels/gemm/gemm_quant/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_GEMM_QUANT_H
#define TILEKILN_OPERATORS_GEMM_QUANT_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Matrix product, quantised: out out_scale = activation(alpha a b + bias), with an out_scale a row (dynamic) or one that is given (static).
 *
 * a (m, k), b (k, n), out (m, n), out_scale (m), bias and column_scale (n), row_scale (m). Each of a and b is row- or column-major: one of
 * its strides is 1, the other is anything; rows of out may have any stride. Any length may be 0; with k = 0 or alpha = 0 the product is 0
 * and a and b are not read. A product with scales is alpha row_scale column_scale a b.
 *
 * x is the product after the activation, in fp32, unrounded. Without static_scale, out_scale is max |x| / 127 of each row, to fp8
 * max |x| / 448; a row of zeros, or of numbers below 2^-100, has out_scale 0 and zeros, one that holds a NaN or an infinity out_scale NaN
 * and zeros. With static_scale all of out_scale is that. out = x / out_scale, rounded to nearest even and saturated: out out_scale is x
 * again, to half a step. Static, a NaN becomes -128 in int8 and NaN in fp8.
 *
 * Sums are those of gemm, in one order: the result has the same bits for any number of threads. Results may overlap no other array.
 * The structs a pointer here names are read before the call returns; the data of the arrays must stay until the stream has run the call.
 * A dynamic call, and any on a GPU, takes memory for m n numbers of fp32 while it runs. */
typedef struct tilekiln_gemm_quant_args {
  size_t size; /* sizeof(tilekiln_gemm_quant_args): set by tilekiln_gemm_quant_defaults */
  const tilekiln_tensor* a; /* fp16, bf16, int8 or fp8 (m, k). The left matrix */
  const tilekiln_tensor* b; /* dtype of a (k, n). The right matrix */
  const tilekiln_tensor* out; /* dtype of a; of fp16: int8 or fp8; of bf16: int8 or fp8; of int8: int8 or fp8; of fp8: fp8 or int8 (m, n). The
     quantised result */
  const tilekiln_tensor* out_scale; /* fp32 (m). What a row of out is to be multiplied by */
  const tilekiln_tensor* bias; /* fp32 (n); or null. One number a column */
  float alpha; /* what the product is multiplied by */
  int32_t activation; /* 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh), 4 (silu), 5 (sigmoid), 6 (hardswish) or 7 (clamp). gelu: by erf; gelu_tanh: by
     its approximation with tanh; clamp: to [clamp_min, clamp_max] */
  float clamp_min; /* the least that clamp leaves */
  float clamp_max; /* the most, at least clamp_min */
  const tilekiln_tensor* row_scale; /* fp32 (m); or null. One factor a row of the product, before c and bias */
  const tilekiln_tensor* column_scale; /* fp32 (n); or null. One factor a column of the product, before c and bias */
  float static_scale; /* the out_scale of all rows; 0: each has its own */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_gemm_quant_args;

/* All fields absent, clamp_min 0, clamp_max 6, alpha 1, static_scale 0, instance -1. Then set a, b, out, out_scale and what else is wanted. */
static inline tilekiln_gemm_quant_args tilekiln_gemm_quant_defaults(void) {
  TILEKILN_ZEROED(tilekiln_gemm_quant_args, args);
  args.alpha = 1.0f;
  args.clamp_max = 6.0f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_gemm_quant(const tilekiln_gemm_quant_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_gemm_quant_find(const tilekiln_gemm_quant_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_gemm_quant_why(const tilekiln_gemm_quant_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
