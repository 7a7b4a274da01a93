/* SPDX-License-Identifier: MIT */
/* gemm.h - Made by `python -m codegen operators --write` from kernels/gemm/gemm/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_GEMM_H
#define TILEKILN_OPERATORS_GEMM_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Matrix product: out = activation(alpha a b + beta c + bias).
 *
 * a (m, k), b (k, n), c and out (m, n), bias and column_scale (n), row_scale (m). Each of a, b, c and out is row- or column-major: one of
 * its strides is 1, the other is anything, 0 and negative included (0 not of out). m, n and k may be 0; with k = 0 or alpha = 0 the
 * product is 0 and a and b are not read. With beta = 0 c is not read. A product with scales is alpha row_scale column_scale a b.
 *
 * fp32, fp16, bf16, fp8 (e4m3) and bf8 (e5m2) are summed in fp32, in one order: the result has the same bits for any number of threads. It
 * is rounded once, after the activation. Where m <= 64, n <= 256 and k >= 16384, parts of k are summed and then added, in an order that the
 * sizes say (split_k); instances of other schedules, persistent and stream_k among them, are called by number. int8 is summed in int32, modulo 2^32:
 * without scales out is those sums, and alpha and beta must
 * be 1; with row_scale or column_scale they become fp32 first.
 *
 * With a_scale (m, k / 128) and b_scale (n / 128, k / 128), both rounded up, fp8 has a factor for each 128 numbers along k of a row of a, and for
 * each block of
 * 128 x 128 of b, as models have them that DeepSeek-V3 is like: out = activation(alpha sum over blocks K of a_scale[i, K] b_scale[j / 128, K] (a b
 * over K)[i, j] + beta c + bias).
 * Sums of a block, and of blocks times their factors, are fp32. Their strides are anything; out is row-major, and there are no other factors.
 *
 * The first layers of a decoder's blocks in one launch, where a has up to 8 rows on a Hopper GPU, out is row-major and b column-major: with a_norm
 * rows of a are
 * normalised first, as rmsnorm2d does it; with b_up out = activation(alpha a b) (a b_up), both sums in fp32, without c, bias and scales. Elsewhere
 * both
 * are refused: call rmsnorm2d before, silu_and_mul or gelu_and_mul behind.
 *
 * Of fp8 and bf8 a GPU's tensor cores sum 128 products, of whose sum they keep
 * some 14 bits, and fp32 additions the rest; instances of accumulate=fast, called by number, leave all to the tensor cores.
 * precision=bf16x3 multiplies fp32 in two parts of bf16, the number rounded and what is left, by three products of the four; bf16x6 in three parts,
 * by
 * the six largest of nine. Tiles of AMX (cpu-amx) and Hopper's tensor cores (cuda-sm90a) do. What is left out of a product is at most 2^-14.4 and
 * 2^-23 of it; of random numbers the error of a
 * sum is 2e-7 and 1e-8 of the sum of |a_ik b_kj| (root mean square), where full has 3e-8. Numbers below 2^-110 lose bits, as products of bf16 take
 * subnormal parts as 0.
 *
 * NaN and infinity go where IEEE arithmetic takes them: into the rows and columns that they stand in. fp16 and bf16 overflow to
 * infinity. bf16 of ISAs with a bf16 product flushes subnormal numbers. gelu, gelu_tanh, silu and hardswish of -infinity are 0.
 *
 * out may be c itself, element for element; else it may not overlap any other array, nor itself.
 * The structs a pointer here names are read before the call returns; the data of the arrays must stay until the stream has run the call. */
typedef struct tilekiln_gemm_args {
  size_t size; /* sizeof(tilekiln_gemm_args): set by tilekiln_gemm_defaults */
  const tilekiln_tensor* a; /* fp32, fp16, bf16, int8, fp8 or bf8 (m, k). The left matrix */
  const tilekiln_tensor* b; /* dtype of a (k, n). The right matrix */
  const tilekiln_tensor* out; /* dtype of a; of fp16: fp16 or fp32; of bf16: bf16 or fp32; of int8: int32, fp32, fp16 or bf16; of fp8: fp16, bf16 or
     fp32; of bf8: fp16, bf16 or fp32 (m, n). The result */
  const tilekiln_tensor* c; /* dtype of out (m, n); or null. added, beta times; not to int32 */
  const tilekiln_tensor* bias; /* fp32 (n); or null. One number a column */
  float alpha; /* what the product is multiplied by */
  float beta; /* what c is multiplied by */
  int32_t activation; /* 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh), 4 (silu), 5 (sigmoid), 6 (hardswish) or 7 (clamp). gelu: by erf; gelu_tanh: by
     its approximation with tanh; clamp: to [clamp_min, clamp_max] */
  float clamp_min; /* the least that clamp leaves */
  float clamp_max; /* the most, at least clamp_min */
  int32_t precision; /* 0 (full), 1 (bf16x3) or 2 (bf16x6). bf16x3, bf16x6: fp32 in parts of bf16, on AMX and Hopper, where a caller gives up
     exactness for speed */
  const tilekiln_tensor* row_scale; /* fp32 (m); or null. One factor a row of the product, before c and bias */
  const tilekiln_tensor* column_scale; /* fp32 (n); or null. One factor a column of the product, before c and bias */
  const tilekiln_tensor* a_scale; /* fp32; or null. a factor a row of a and 128 numbers along k */
  const tilekiln_tensor* b_scale; /* fp32; or null. a factor a block of 128 x 128 of b, (n / 128, k / 128) */
  const tilekiln_tensor* a_norm; /* dtype of a (k); or null. Gamma of an RMS norm that rows of a go through first; of few rows on CUDA */
  const tilekiln_tensor* b_up; /* dtype of b (k, n); or null. a second b, of a gated layer: out = activation(alpha a b) (a b_up); of few rows on CUDA */
  float norm_epsilon; /* added to the mean of the squares of a row of a */
  int32_t norm_rounding; /* 0 (pytorch) or 1 (transformers). Of a_norm, as rmsnorm2d has it */
  int32_t b_is_constant; /* 0 or 1. yes: nothing that is in the stream writes b, b_up and a_norm, weights of a layer: a GPU may read them before the
     launch before has ended */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_gemm_args;

/* All fields absent, clamp_min 0, clamp_max 6, alpha and beta 1, precision full, norm_epsilon 1e-6, norm_rounding pytorch, instance -1. Then set a,
 * b, out and what else is wanted. */
static inline tilekiln_gemm_args tilekiln_gemm_defaults(void) {
  TILEKILN_ZEROED(tilekiln_gemm_args, args);
  args.alpha = 1.0f;
  args.beta = 1.0f;
  args.clamp_max = 6.0f;
  args.norm_epsilon = 1e-06f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_gemm(const tilekiln_gemm_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_gemm_find(const tilekiln_gemm_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_gemm_why(const tilekiln_gemm_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
