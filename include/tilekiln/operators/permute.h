/* SPDX-License-Identifier: MIT */
/* permute.h - Made by `python -m codegen operators --write` from kernels/tensor/permute/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_PERMUTE_H
#define TILEKILN_OPERATORS_PERMUTE_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Permutation: y[i0, i1, ..] = x with dimension axes[d] of x as dimension d of y.
 *
 * x has up to 8 dimensions of any length, y the same in the order of axes: y.shape[d] = x.shape[axes[d]]. Elements are of 1, 2, 4 or 8
 * bytes and move bit for bit. Both arrays may have any strides; of y no two elements may lie at one address, and it shares no memory
 * with x: there is no permutation in place. */
typedef struct tilekiln_permute_args {
  size_t size; /* sizeof(tilekiln_permute_args): set by tilekiln_permute_defaults */
  const tilekiln_tensor* x; /* fp32, fp16, bf16, fp8, bf8, int8, int16, int32, int64, uint8, uint16, uint32, uint64, fp64 or bool. What is permuted,
     (d0, d1, ..) */
  tilekiln_dims axes; /* dimensions of x. The dimension of x that each of y is, every one once; none: all, last first */
  const tilekiln_tensor* y; /* dtype of x. x in the order of axes */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_permute_args;

/* All fields absent, instance -1. Then set x, y and axes. */
static inline tilekiln_permute_args tilekiln_permute_defaults(void) {
  TILEKILN_ZEROED(tilekiln_permute_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_permute(const tilekiln_permute_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_permute_find(const tilekiln_permute_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_permute_why(const tilekiln_permute_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
