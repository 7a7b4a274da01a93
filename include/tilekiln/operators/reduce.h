/* SPDX-License-Identifier: MIT */
/* reduce.h - Made by `python -m codegen operators --write` from kernels/tensor/reduce/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_REDUCE_H
#define TILEKILN_OPERATORS_REDUCE_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Reduction: y = the sum, mean, maximum or minimum of x over some of its dimensions.
 *
 * x has up to 8 dimensions; y those that are not in axes, in their order, or with keepdim all of them, of length 1 where x is reduced.
 * Sums are fp32 over 64 additions at most and then fp64, in one order whatever the threads and the strides of y; y is rounded once. A NaN
 * makes what it is part of NaN, of maxima and minima too. Of nothing the sum is 0 and the mean NaN; a maximum or minimum of nothing is refused.
 *
 * Both arrays may have any strides; of y no two elements may lie at one address, and it shares no memory with x. */
typedef struct tilekiln_reduce_args {
  size_t size; /* sizeof(tilekiln_reduce_args): set by tilekiln_reduce_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16. What is reduced, (d0, d1, ..) */
  tilekiln_dims axes; /* dimensions of x. The dimensions that are reduced; none: all */
  int32_t operation; /* 0 (sum), 1 (mean), 2 (max) or 3 (min). What is made of the elements */
  int32_t keepdim; /* 0 or 1. yes: dimensions that are reduced stay, of length 1 */
  const tilekiln_tensor* y; /* dtype of x. The reduction */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_reduce_args;

/* operation sum, instance -1. Then set x, y and axes. */
static inline tilekiln_reduce_args tilekiln_reduce_defaults(void) {
  TILEKILN_ZEROED(tilekiln_reduce_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_reduce(const tilekiln_reduce_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_reduce_find(const tilekiln_reduce_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_reduce_why(const tilekiln_reduce_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
