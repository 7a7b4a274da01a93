/* SPDX-License-Identifier: MIT */
/* flatmm_quant.h - Made by `python -m codegen operators --write` from kernels/gemm/flatmm_quant/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_FLATMM_QUANT_H
#define TILEKILN_OPERATORS_FLATMM_QUANT_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Matrix product with a packed quantised b: out = activation(sum over groups g of k of a_scale[i, g] b_scale[g, j] (a b)[i, j] + beta c + bias).
 *
 * a (m, k), c and out (m, panels, 64), bias (panels, 64), b_scale (panels, groups, 64), a_scale (m, groups) or (m, 1), which is absent for 1.
 * A group is `group` numbers along k that follow each other, the last may be fewer; group is a multiple of 32, k of 8.
 * b of int8 (panels, k / 4, 64, 4): b[p, w, j, e] is element (4 w + e, 64 p + j) of the (k, n) matrix, its sign bit flipped (128 added,
 * modulo 256); of fp8 (panels, k / 2, 64, 2) alike, as it is;
 * of int4 uint8 (panels, k / 8, 64, 4): the lower half of b[p, w, j, e] is element (8 w + e, 64 p + j) and 8, the upper one that of row
 * 8 w + 4 + e. With a b_scale of uint8 the halves are e2m1, as MXFP4 has them (0, .5, 1, 1.5, 2, 3, 4, 6, from 8 on less than 0); with one of
 * fp16 they are numbers of 0 to 15, less b_zero (panels, groups, 64), as AWQ and GPTQ have them; with one of fp8 they are e2m1 again, as NVFP4 has
 * them, times b_factor, and group a multiple of 16.
 * On a Hopper GPU a of fp16 and bf16 stays as it is, by b of int4, int8 or fp8. Up to 8 rows there, and groups of 32, 64, 128, 256 and so on or whole
 * rows, may be normalised first, with
 * a_norm, as rmsnorm2d does it, and gated, with b_up: out = activation(a b) (a b_up) without c, bias and scales of a. Elsewhere both are refused:
 * call
 * rmsnorm2d before, silu_and_mul or gelu_and_mul behind.
 * With a b of fp8 b_scale may be uint8, MXFP8; of both rows stay fp16 or bf16. All is contiguous, but rows of a, a_scale, c and out may have any
 * stride. In Python `tilekiln.QuantisedWeight` packs, and
 * `tilekiln.linear` takes it.
 *
 * int8 by int8 and by int4 is exact within a group; all other sums are fp32, in one order: the result has the same bits for any number of
 * threads. With quantise_a a row of a becomes int8, max |a| / 127 being its factor, rounded to nearest even; a row of zeros stays zeros,
 * and one that holds a NaN or an infinity becomes NaN. fp16 takes b as fp32, bf16 as bf16, which holds int4 exactly.
 * Special values as in gemm. With beta = 0 c is not read. out may be c itself, element for element; else it may not overlap any other
 * array, nor itself.
 * The structs a pointer here names are read before the call returns; the data of the arrays must stay until the stream has run the call. */
typedef struct tilekiln_flatmm_quant_args {
  size_t size; /* sizeof(tilekiln_flatmm_quant_args): set by tilekiln_flatmm_quant_defaults */
  const tilekiln_tensor* a; /* fp16, bf16, int8 or fp8 (m, k). The left matrix */
  const tilekiln_tensor* b; /* uint8, int8 or fp8 (panels, words, lanes, word elements). The packed right matrix */
  const tilekiln_tensor* b_scale; /* fp32, uint8, fp16 or fp8 (panels, groups, lanes). a factor a column and group; of uint8 e8m0: 2^(byte - 127), NaN
     of 255 */
  const tilekiln_tensor* out; /* dtype of a; of fp16: fp16 or fp32; of bf16: bf16 or fp32; of int8: bf16, fp16 or fp32; of fp8: bf16, fp16 or fp32 (m,
     panels, lanes). The result */
  const tilekiln_tensor* a_scale; /* fp32 (m, 1|groups); or null. a factor a row, or a row and group */
  const tilekiln_tensor* bias; /* fp32 (panels, lanes); or null. One number a column */
  int32_t group; /* numbers of a group along k */
  int32_t quantise_a; /* 0 or 1. Rows of a become int8 first */
  int32_t activation; /* 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh), 4 (silu), 5 (sigmoid), 6 (hardswish) or 7 (clamp). gelu: by erf; gelu_tanh: by
     its approximation with tanh; clamp: to [clamp_min, clamp_max] */
  float clamp_min; /* the least that clamp leaves */
  float clamp_max; /* the most, at least clamp_min */
  const tilekiln_tensor* c; /* dtype of out (m, panels, lanes); or null. added, beta times */
  float beta; /* what c is multiplied by */
  const tilekiln_tensor* b_zero; /* uint8 (panels, groups, lanes); or null. The zero point of a column and group, 0 to 16, with a b_scale of fp16 */
  const tilekiln_tensor* a_norm; /* dtype of a (k); or null. Gamma of an RMS norm that rows of a go through first; of few rows on CUDA */
  const tilekiln_tensor* b_up; /* dtype of b (panels, words, lanes, word elements); or null. a second b, of a gated layer: out = activation(a b) (a
     b_up); of few rows on CUDA */
  const tilekiln_tensor* b_up_scale; /* dtype of b_scale (panels, groups, lanes); or null. Factors of b_up */
  float norm_epsilon; /* added to the mean of the squares of a row of a */
  int32_t norm_rounding; /* 0 (pytorch) or 1 (transformers). Of a_norm, as rmsnorm2d has it */
  int32_t b_is_constant; /* 0 or 1. yes: nothing that is in the stream writes b, b_up, their scales and a_norm: a GPU may read them before the launch
     before has ended */
  float b_factor; /* what all of b is multiplied by, with a b of uint8 and b_scale of fp8: NVFP4's global factor */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_flatmm_quant_args;

/* All fields absent, group 32, clamp_min 0, clamp_max 6, beta 1, norm_epsilon 1e-6, norm_rounding pytorch, instance -1. Then set a, b, b_scale, out
 * and what else is wanted. */
static inline tilekiln_flatmm_quant_args tilekiln_flatmm_quant_defaults(void) {
  TILEKILN_ZEROED(tilekiln_flatmm_quant_args, args);
  args.group = 32;
  args.clamp_max = 6.0f;
  args.beta = 1.0f;
  args.norm_epsilon = 1e-06f;
  args.b_factor = 1.0f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_flatmm_quant(const tilekiln_flatmm_quant_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_flatmm_quant_find(const tilekiln_flatmm_quant_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_flatmm_quant_why(const tilekiln_flatmm_quant_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
