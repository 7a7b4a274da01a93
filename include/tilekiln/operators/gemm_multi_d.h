/* SPDX-License-Identifier: MIT */
/* gemm_multi_d.h - Made by `python -m codegen operators --write` from kernels/gemm/gemm_multi_d/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_GEMM_MULTI_D_H
#define TILEKILN_OPERATORS_GEMM_MULTI_D_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Matrix product with more matrices: out = activation(alpha (a op a1) (b op b1) op d0 op d1), op + or times.
 *
 * a (m, k), b (k, n), out (m, n), d0 and d1 (m, n), each of whose lengths may be 1 instead: such a d is the same for all rows or columns.
 * Each of a, b and out is row- or column-major: one of its strides is 1, the other is anything (0 not of out). Strides of d are anything
 * where its length is not read, and one of them is 1 else. m, n and k may be 0; with k = 0 or alpha = 0 the product is 0 and a and b are
 * not read. a1 (m, k) and b1 (k, n), whose lengths may be 1, too, are combined with a and b by a_elementwise and b_elementwise before they
 * are multiplied, in fp32, and rounded to their dtype once; on CPUs alone.
 *
 * Sums are fp32, in one order: the result has the same bits for any number of threads. It is rounded once, after the activation.
 * Special values as in gemm. out may be d0 itself, element for element; else it may not overlap any other array, nor itself.
 * The structs a pointer here names are read before the call returns; the data of the arrays must stay until the stream has run the call. */
typedef struct tilekiln_gemm_multi_d_args {
  size_t size; /* sizeof(tilekiln_gemm_multi_d_args): set by tilekiln_gemm_multi_d_defaults */
  const tilekiln_tensor* a; /* fp32, fp16 or bf16 (m, k). The left matrix */
  const tilekiln_tensor* b; /* dtype of a (k, n). The right matrix */
  const tilekiln_tensor* d0; /* dtype of a (1|m, 1|n). Combined with the product first */
  const tilekiln_tensor* d1; /* dtype of a (1|m, 1|n); or null. Combined with that */
  const tilekiln_tensor* out; /* dtype of a (m, n). The result */
  int32_t elementwise; /* 0 (add) or 1 (multiply). What op is */
  float alpha; /* what the product is multiplied by */
  int32_t activation; /* 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh), 4 (silu), 5 (sigmoid), 6 (hardswish) or 7 (clamp). gelu: by erf; gelu_tanh: by
     its approximation with tanh; clamp: to [clamp_min, clamp_max] */
  float clamp_min; /* the least that clamp leaves */
  float clamp_max; /* the most, at least clamp_min */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
  const tilekiln_tensor* a1; /* dtype of a (1|m, 1|k); or null. Combined with a before */
  const tilekiln_tensor* b1; /* dtype of a (1|k, 1|n); or null. Combined with b before */
  int32_t a_elementwise; /* 0 (add) or 1 (multiply). What combines a and a1 */
  int32_t b_elementwise; /* 0 (add) or 1 (multiply). What combines b and b1 */
} tilekiln_gemm_multi_d_args;

/* All fields absent, clamp_min 0, clamp_max 6, alpha 1, instance -1. Then set a, b, d0, out and what else is wanted. */
static inline tilekiln_gemm_multi_d_args tilekiln_gemm_multi_d_defaults(void) {
  TILEKILN_ZEROED(tilekiln_gemm_multi_d_args, args);
  args.alpha = 1.0f;
  args.clamp_max = 6.0f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_gemm_multi_d(const tilekiln_gemm_multi_d_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_gemm_multi_d_find(const tilekiln_gemm_multi_d_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_gemm_multi_d_why(const tilekiln_gemm_multi_d_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
