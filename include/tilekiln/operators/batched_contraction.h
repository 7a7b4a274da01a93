/* SPDX-License-Identifier: MIT */
/* batched_contraction.h - Made by `python -m codegen operators --write` from kernels/gemm/batched_contraction/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_BATCHED_CONTRACTION_H
#define TILEKILN_OPERATORS_BATCHED_CONTRACTION_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Tensor contraction: out[g.., m.., n..] = alpha times the sum over k.. of a[g.., m.., k..] b[g.., n.., k..].
 *
 * g, m, n and k stand for any number of dimensions: batch_dims says how many are of g, k_dims how many of k; what is left of a is m, what is
 * left of b is n. a (g.., m.., k..), b (g.., n.., k..), out (g.., m.., n..) have up to 8 dimensions each, of any strides: einsum's
 * "gabk,gcdk->gabcd" is batch_dims=1, k_dims=1. Each is read and written where it lies: a contraction is a list of matrix products over
 * one dimension of m, of n and of k, joined from several where they go on evenly. Of each array one of the two dimensions of its matrices
 * has stride 1; where none has, the call is refused. Any length may be 0; with nothing to sum, or alpha = 0, out is 0.
 *
 * Sums are fp32, in one order, across all of k: the result has the same bits for any number of threads, and is rounded once. Special values
 * as in gemm. out may not overlap another array, nor itself. */
typedef struct tilekiln_batched_contraction_args {
  size_t size; /* sizeof(tilekiln_batched_contraction_args): set by tilekiln_batched_contraction_defaults */
  const tilekiln_tensor* a; /* fp32, fp16 or bf16. The left array */
  const tilekiln_tensor* b; /* dtype of a. The right array */
  int32_t batch_dims; /* dimensions that a, b and out begin with */
  int32_t k_dims; /* dimensions that a and b end with, and that are summed over */
  float alpha; /* what the product is multiplied by */
  const tilekiln_tensor* out; /* dtype of a. The result */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_batched_contraction_args;

/* k_dims 1, alpha 1, instance -1. Then set a, b and out. */
static inline tilekiln_batched_contraction_args tilekiln_batched_contraction_defaults(void) {
  TILEKILN_ZEROED(tilekiln_batched_contraction_args, args);
  args.k_dims = 1;
  args.alpha = 1.0f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_batched_contraction(const tilekiln_batched_contraction_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_batched_contraction_find(const tilekiln_batched_contraction_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_batched_contraction_why(const tilekiln_batched_contraction_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
