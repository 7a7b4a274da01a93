/* SPDX-License-Identifier: MIT */
/* softmax.h - Made by `python -m codegen operators --write` from kernels/norm/softmax/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_SOFTMAX_H
#define TILEKILN_OPERATORS_SOFTMAX_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Softmax: y = exp(x - max(x)) / sum(exp(x - max(x))) over the last dimension.
 *
 * x, y (rows, columns). Everything is fp32, sums in one order whatever the threads; y is rounded once. A row that holds a NaN or +inf,
 * or nothing but -inf, is NaN; other elements of -inf are 0.
 *
 * Rows may have any stride, the last dimension is contiguous. y may be x, the same memory with the same strides; otherwise it shares
 * no memory with it. */
typedef struct tilekiln_softmax_args {
  size_t size; /* sizeof(tilekiln_softmax_args): set by tilekiln_softmax_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (rows, columns). Logits */
  const tilekiln_tensor* y; /* dtype of x (rows, columns). Their softmax */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_softmax_args;

/* instance -1. Then set x and y. */
static inline tilekiln_softmax_args tilekiln_softmax_defaults(void) {
  TILEKILN_ZEROED(tilekiln_softmax_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_softmax(const tilekiln_softmax_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_softmax_find(const tilekiln_softmax_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_softmax_why(const tilekiln_softmax_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
