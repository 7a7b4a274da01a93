/* SPDX-License-Identifier: MIT */
/* rmsnorm2d_bwd.h - Made by `python -m codegen operators --write` from kernels/norm/rmsnorm2d_bwd/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_RMSNORM2D_BWD_H
#define TILEKILN_OPERATORS_RMSNORM2D_BWD_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Gradients of RMS normalisation: dx and dgamma from dy.
 *
 * dy, x, dx (rows, columns), gamma, dgamma (columns), inv_rms (rows), fp32.
 * With z = x inv_rms, g = dy gamma and means over a row: dx = inv_rms (g - z mean(g z)), dgamma = the sum of dy z over rows. inv_rms is
 * rmsnorm2d's, of either rounding: rounding has no derivative.
 *
 * Everything is fp32, rounded once; sums over rows are taken over parts of them, then over the parts, in one order whatever the threads.
 * Rows may have any stride, the last dimension is contiguous. dx may be dy: the same memory with the same strides; otherwise results
 * share memory with nothing. */
typedef struct tilekiln_rmsnorm2d_bwd_args {
  size_t size; /* sizeof(tilekiln_rmsnorm2d_bwd_args): set by tilekiln_rmsnorm2d_bwd_defaults */
  const tilekiln_tensor* dy; /* fp32, fp16 or bf16 (rows, columns). The gradient of y */
  const tilekiln_tensor* x; /* dtype of dy (rows, columns). What was normalised */
  const tilekiln_tensor* gamma; /* dtype of dy (columns). One factor a column */
  const tilekiln_tensor* inv_rms; /* fp32 (rows). Of each row of x */
  const tilekiln_tensor* dx; /* dtype of dy (rows, columns). The gradient of x */
  const tilekiln_tensor* dgamma; /* dtype of dy (columns). The gradient of gamma */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_rmsnorm2d_bwd_args;

/* instance -1. Then set dy, x, gamma, inv_rms, dx, dgamma. */
static inline tilekiln_rmsnorm2d_bwd_args tilekiln_rmsnorm2d_bwd_defaults(void) {
  TILEKILN_ZEROED(tilekiln_rmsnorm2d_bwd_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_rmsnorm2d_bwd(const tilekiln_rmsnorm2d_bwd_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_rmsnorm2d_bwd_find(const tilekiln_rmsnorm2d_bwd_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_rmsnorm2d_bwd_why(const tilekiln_rmsnorm2d_bwd_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
