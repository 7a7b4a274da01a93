/* SPDX-License-Identifier: MIT */
/* gemm_list.h - Made by `python -m codegen operators --write` from kernels/gemm/gemm_list/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_GEMM_LIST_H
#define TILEKILN_OPERATORS_GEMM_LIST_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* The grouped product of a list: matrix products, each with sizes, strides and places of its own, in one launch: out_i = activation(alpha a_i b_i +
 * bias_i).
 *
 * a, b, out and bias are flat: contiguous memory in which the matrices of all problems lie. problems (problems, 10) is int64, a row a problem:
 *
 *     m, n, k, a, lda, b, ldb, out, ld_out, bias
 *
 * a, b, out and bias there are the elements at which those of the problem begin. a_i is (m, k): element (i, l) is lda i + l further, where
 * layout_a is column i + lda l; b_i is (k, n): element (l, j) is l + ldb j further, the weight (n, k) of a linear layer, where layout_b is row
 * ldb l + j; out_i is (m, n), element (i, j) ld_out i + j further; bias_i is n numbers. Strides are anything, 0 and negative included, but
 * that ld_out keeps rows apart. Every element must lie inside its array. m, n and k may be 0: without m or n a problem costs nothing,
 * without k its product is 0. Problems may share a_i, b_i and bias_i; no out_i may overlap another one or anything that is read.
 * Matrices of separate allocations: an array may begin at the lowest of them and end at the highest; what lies between is not
 * touched. `tilekiln.grouped_gemm` does so with lists of arrays.
 *
 * Products of int8 are their int32 sums, alpha being 1; those of fp8, e4m3, are bf16. Sums are fp32, in one order: results have the same bits for any
 * number of threads, and are those of gemm's tiles. Special values as in gemm.
 * On a GPU each problem is a launch, one after the other in the stream, and problems may lie on the host.
 * What of out no problem writes is left as it is (a new out has zeros there).
 * The structs a pointer here names are read before the call returns, and so is problems; the data of the other arrays must stay until the
 * stream has run the call. */
typedef struct tilekiln_gemm_list_args {
  size_t size; /* sizeof(tilekiln_gemm_list_args): set by tilekiln_gemm_list_defaults */
  const tilekiln_tensor* a; /* fp32, fp16, bf16, int8 or fp8 (length). The left matrices */
  const tilekiln_tensor* b; /* dtype of a (length). The right matrices */
  const tilekiln_tensor* problems; /* int64 (problems, 10). m, n, k, a, lda, b, ldb, out, ld_out and bias of each */
  const tilekiln_tensor* out; /* dtype of a; of int8: int32; of fp8: bf16. The results */
  const tilekiln_tensor* bias; /* fp32; or null. One number a column of each */
  int32_t out_length; /* elements of a new out; without meaning where out is given */
  int32_t layout_a; /* 0 (row) or 1 (column). row: rows of each a are contiguous; column: its columns are */
  int32_t layout_b; /* 0 (column) or 1 (row). column: columns of each b are contiguous, as of a linear layer's weight; row: its rows are */
  float alpha; /* what the product is multiplied by */
  int32_t activation; /* 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh), 4 (silu), 5 (sigmoid), 6 (hardswish) or 7 (clamp). gelu: by erf; gelu_tanh: by
     its approximation with tanh; clamp: to [clamp_min, clamp_max] */
  float clamp_min; /* the least that clamp leaves */
  float clamp_max; /* the most, at least clamp_min */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_gemm_list_args;

/* All fields absent, clamp_min 0, clamp_max 6, alpha 1, instance -1. Then set a, b, problems, out and what else is wanted. */
static inline tilekiln_gemm_list_args tilekiln_gemm_list_defaults(void) {
  TILEKILN_ZEROED(tilekiln_gemm_list_args, args);
  args.alpha = 1.0f;
  args.clamp_max = 6.0f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_gemm_list(const tilekiln_gemm_list_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_gemm_list_find(const tilekiln_gemm_list_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_gemm_list_why(const tilekiln_gemm_list_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
