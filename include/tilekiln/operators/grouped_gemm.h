/* SPDX-License-Identifier: MIT */
/* grouped_gemm.h - Made by `python -m codegen operators --write` from kernels/gemm/grouped_gemm/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_GROUPED_GEMM_H
#define TILEKILN_OPERATORS_GROUPED_GEMM_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Matrix products of groups of rows, as of the experts of a layer: rows [starts[g], starts[g + 1]) of out = activation(those of a times b[g] + those
 * of beta c + bias[g]).
 *
 * a (rows, k), b (groups, k, n), starts (groups + 1) int32, c and out (rows, n), bias (groups, n). starts begins at 0 or above, never falls and
 * ends at rows or below; a group without rows costs nothing, and rows of no group are left as they are (a new out has zeros there).
 * a, c and out have contiguous rows; of the last two dimensions of b one stride is 1; other strides are anything, and 0 of b's groups shares
 * one matrix. Any length may be 0. With beta = 0 c is not read.
 *
 * On a GPU the kernel reads starts: they lie there as all arrays do, nothing waits for them, and a graph may hold the call. They are then not
 * checked: a group whose end is below its start is empty, and rows end where a does.
 *
 * With counts (groups) a group has but the first counts[g] of its rows, 0 or above and no more than there are, and the others are rows
 * of no group: groups may lie as far apart as the largest is (masked layouts). On a GPU a count below 0 is 0, and rows end where a group does.
 *
 * fp8 is e4m3 with factors of blocks, as gemm has them: a_scale (rows, k / 128) and b_scale (groups, n / 128, k / 128), both rounded up, of any
 * strides; b is column-major, out and c are bf16. int8 has factors as gemm has them, row_scale (rows) and column_scale (groups, n), one or both of
 * them,
 * b column-major too, and out and c bf16: a product's sums are exact.
 *
 * Packed, which is faster on the CPU, b is a matrix of panels a group, as flatmm has them: b (groups, panels, words, 64, word elements), c and out
 * (rows, panels, 64), bias (groups, panels, 64). In Python `tilekiln.PackedWeight` packs one group; their `panels` are stacked.
 *
 * Sums are fp32, in one order: results have the same bits for any number of threads, and are those of gemm's tiles. Special values
 * as in gemm. out may be c itself, element for element; else it may not overlap any other array, nor itself.
 * The structs a pointer here names are read before the call returns, and so is starts on the CPU; the data of the other arrays must stay
 * until the stream has run the call. */
typedef struct tilekiln_grouped_gemm_args {
  size_t size; /* sizeof(tilekiln_grouped_gemm_args): set by tilekiln_grouped_gemm_defaults */
  const tilekiln_tensor* a; /* fp32, fp16, bf16, fp8 or int8 (rows, k). The rows, group after group */
  const tilekiln_tensor* b; /* dtype of a (groups, k, n), packed: (groups, panels, words, lanes, word elements). a matrix a group */
  const tilekiln_tensor* starts; /* int32 (groups + 1). The first row of each group, and the end of the last */
  const tilekiln_tensor* counts; /* int32 (groups); or null. How many rows of each group count; without, all */
  const tilekiln_tensor* out; /* dtype of a; of fp8: bf16; of int8: bf16 (rows, n), packed: (rows, panels, lanes). The results */
  const tilekiln_tensor* bias; /* fp32 (groups, n), packed: (groups, panels, lanes); or null. One number a column and group */
  int32_t activation; /* 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh), 4 (silu), 5 (sigmoid), 6 (hardswish) or 7 (clamp). gelu: by erf; gelu_tanh: by
     its approximation with tanh; clamp: to [clamp_min, clamp_max] */
  float clamp_min; /* the least that clamp leaves */
  float clamp_max; /* the most, at least clamp_min */
  const tilekiln_tensor* c; /* dtype of out (rows, n), packed: (rows, panels, lanes); or null. added, beta times */
  float beta; /* what c is multiplied by */
  const tilekiln_tensor* a_scale; /* fp32; or null. Of fp8: a factor a row of a and 128 numbers along k */
  const tilekiln_tensor* b_scale; /* fp32; or null. Of fp8: a factor a block of 128 x 128 of each b, (groups, n / 128, k / 128) */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
  const tilekiln_tensor* row_scale; /* fp32 (rows); or null. Of int8: a factor a row */
  const tilekiln_tensor* column_scale; /* fp32 (groups, n); or null. Of int8: a factor a column and group */
} tilekiln_grouped_gemm_args;

/* All fields absent, clamp_min 0, clamp_max 6, beta 1, instance -1. Then set a, b, starts, out and what else is wanted. */
static inline tilekiln_grouped_gemm_args tilekiln_grouped_gemm_defaults(void) {
  TILEKILN_ZEROED(tilekiln_grouped_gemm_args, args);
  args.clamp_max = 6.0f;
  args.beta = 1.0f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_grouped_gemm(const tilekiln_grouped_gemm_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_grouped_gemm_find(const tilekiln_grouped_gemm_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_grouped_gemm_why(const tilekiln_grouped_gemm_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
