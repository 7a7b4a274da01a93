/* SPDX-License-Identifier: MIT */
/* rmsnorm2d.h - Made by `python -m codegen operators --write` from kernels/norm/rmsnorm2d/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_RMSNORM2D_H
#define TILEKILN_OPERATORS_RMSNORM2D_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* RMS normalisation: y = x / sqrt(mean(x^2) + epsilon) gamma over the last dimension; with a residual, of x + residual.
 *
 * x, residual, y, residual_out (rows, columns), gamma (columns), inv_rms (rows). Sums are fp32, in one order whatever the threads;
 * x + residual is rounded to the dtype of x before anything else, so y is that of the stored sum. y is rounded once, as PyTorch's
 * rms_norm does; with rounding transformers x / sqrt(..) is rounded to the dtype of x too, before it is multiplied by gamma, as the
 * RMSNorm of Hugging Face's models (Llama, T5) does.
 * A row that holds a NaN is NaN; where a square or the sum leaves fp32, finite elements become 0 and infinite ones NaN.
 *
 * Rows may have any stride, the last dimension is contiguous. y may be x, and residual_out may be residual: the same memory with the
 * same strides; otherwise results share memory with nothing. */
typedef struct tilekiln_rmsnorm2d_args {
  size_t size; /* sizeof(tilekiln_rmsnorm2d_args): set by tilekiln_rmsnorm2d_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (rows, columns). What is normalised */
  const tilekiln_tensor* gamma; /* dtype of x (columns). One factor a column */
  const tilekiln_tensor* y; /* dtype of x (rows, columns). The normalised rows */
  const tilekiln_tensor* residual; /* dtype of x (rows, columns); or null. Added to x first */
  const tilekiln_tensor* residual_out; /* dtype of x (rows, columns); or null. x + residual */
  const tilekiln_tensor* inv_rms; /* fp32 (rows); or null. 1 / sqrt(mean(x^2) + epsilon) of each row */
  float epsilon; /* added to the mean of the squares */
  int32_t rounding; /* 0 (pytorch) or 1 (transformers). transformers: x / sqrt(..) is rounded before it is multiplied by gamma */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_rmsnorm2d_args;

/* epsilon 1e-6, rounding pytorch, instance -1. Then set x, gamma, y and what else is wanted. */
static inline tilekiln_rmsnorm2d_args tilekiln_rmsnorm2d_defaults(void) {
  TILEKILN_ZEROED(tilekiln_rmsnorm2d_args, args);
  args.epsilon = 1e-06f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_rmsnorm2d(const tilekiln_rmsnorm2d_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_rmsnorm2d_find(const tilekiln_rmsnorm2d_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_rmsnorm2d_why(const tilekiln_rmsnorm2d_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
