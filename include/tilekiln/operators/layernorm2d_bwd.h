/* SPDX-License-Identifier: MIT */
/* layernorm2d_bwd.h - Made by `python -m codegen operators --write` from kernels/norm/layernorm2d_bwd/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_LAYERNORM2D_BWD_H
#define TILEKILN_OPERATORS_LAYERNORM2D_BWD_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Gradients of layer normalisation: dx and dgamma and dbeta from dy.
 *
 * dy, x, dx (rows, columns), gamma, dgamma, dbeta (columns), mean, inv_std (rows), fp32.
 * With z = (x - mean) inv_std, g = dy gamma and means over a row: dx = inv_std (g - mean(g) - z mean(g z)), dgamma = the sum of dy z over
 * rows, dbeta that of dy. mean and inv_std are layernorm2d's.
 *
 * Everything is fp32, rounded once; sums over rows are taken over parts of them, then over the parts, in one order whatever the threads.
 * Rows may have any stride, the last dimension is contiguous. dx may be dy: the same memory with the same strides; otherwise results
 * share memory with nothing. */
typedef struct tilekiln_layernorm2d_bwd_args {
  size_t size; /* sizeof(tilekiln_layernorm2d_bwd_args): set by tilekiln_layernorm2d_bwd_defaults */
  const tilekiln_tensor* dy; /* fp32, fp16 or bf16 (rows, columns). The gradient of y */
  const tilekiln_tensor* x; /* dtype of dy (rows, columns). What was normalised */
  const tilekiln_tensor* gamma; /* dtype of dy (columns). One factor a column */
  const tilekiln_tensor* mean; /* fp32 (rows). Of each row of x */
  const tilekiln_tensor* inv_std; /* fp32 (rows). Of each row of x */
  const tilekiln_tensor* dx; /* dtype of dy (rows, columns). The gradient of x */
  const tilekiln_tensor* dgamma; /* dtype of dy (columns). The gradient of gamma */
  const tilekiln_tensor* dbeta; /* dtype of dy (columns); or null. The gradient of beta */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_layernorm2d_bwd_args;

/* instance -1. Then set dy, x, gamma, mean, inv_std, dx, dgamma and, if wanted, dbeta. */
static inline tilekiln_layernorm2d_bwd_args tilekiln_layernorm2d_bwd_defaults(void) {
  TILEKILN_ZEROED(tilekiln_layernorm2d_bwd_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_layernorm2d_bwd(const tilekiln_layernorm2d_bwd_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_layernorm2d_bwd_find(const tilekiln_layernorm2d_bwd_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_layernorm2d_bwd_why(const tilekiln_layernorm2d_bwd_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
