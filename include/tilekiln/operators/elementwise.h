/* SPDX-License-Identifier: MIT */
/* elementwise.h - Made by `python -m codegen operators --write` from kernels/tensor/elementwise/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_ELEMENTWISE_H
#define TILEKILN_OPERATORS_ELEMENTWISE_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Elementwise: y = the sum, product or another operation of one to four arrays that are broadcast.
 *
 * Shapes are broadcast as NumPy does it: aligned at their last dimension, of at most 8, a length of 1 stands for any. y has the shape that
 * all have together. add, sub, mul, div, max and min take all arrays that are given, from the first on: sub is x - x1 - x2 - x3; the others x alone.
 *
 * All is computed in fp32, from left to right, and rounded once. Special values are IEEE's; a NaN of any array makes NaN of max and min.
 * Arrays have any strides, 0 and negative ones too; of y no two elements lie at one address. y may be x itself, element for element, of the
 * same shape and strides; else it shares no memory with any. */
typedef struct tilekiln_elementwise_args {
  size_t size; /* sizeof(tilekiln_elementwise_args): set by tilekiln_elementwise_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16. The first array */
  const tilekiln_tensor* x1; /* dtype of x; or null. The second */
  const tilekiln_tensor* x2; /* dtype of x; or null. The third */
  const tilekiln_tensor* x3; /* dtype of x; or null. The fourth */
  int32_t operation; /* 0 (add), 1 (sub), 2 (mul), 3 (div), 4 (max), 5 (min), 6 (neg), 7 (abs), 8 (square), 9 (sqrt), 10 (rsqrt), 11 (reciprocal), 12
     (exp), 13 (tanh), 14 (relu), 15 (sigmoid), 16 (silu), 17 (gelu) or 18 (gelu_tanh). What is made of the elements */
  const tilekiln_tensor* y; /* dtype of x. The result */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_elementwise_args;

/* operation add, instance -1. Then set x, y and what else is wanted. */
static inline tilekiln_elementwise_args tilekiln_elementwise_defaults(void) {
  TILEKILN_ZEROED(tilekiln_elementwise_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_elementwise(const tilekiln_elementwise_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_elementwise_find(const tilekiln_elementwise_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_elementwise_why(const tilekiln_elementwise_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
