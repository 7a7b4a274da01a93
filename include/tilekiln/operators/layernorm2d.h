/* SPDX-License-Identifier: MIT */
/* layernorm2d.h - Made by `python -m codegen operators --write` from kernels/norm/layernorm2d/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_LAYERNORM2D_H
#define TILEKILN_OPERATORS_LAYERNORM2D_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Layer normalisation: y = (x - mean(x)) / sqrt(variance(x) + epsilon) gamma + beta over the last dimension; with a residual, of x + residual.
 *
 * x, residual, y, residual_out (rows, columns), gamma, beta (columns), mean, inv_std (rows). The variance is that of all columns
 * (divided by their number) and of deviations from the mean, so rows far from 0 keep their digits. Sums are fp32, in one order whatever
 * the threads; x + residual is rounded to the dtype of x before anything else, so y is that of the stored sum. y is rounded once.
 * A row that holds a NaN or an infinity is NaN; where a deviation or their squares leave fp32, elements are beta or NaN.
 *
 * Rows may have any stride, the last dimension is contiguous. y may be x, and residual_out may be residual: the same memory with the
 * same strides; otherwise results share memory with nothing. */
typedef struct tilekiln_layernorm2d_args {
  size_t size; /* sizeof(tilekiln_layernorm2d_args): set by tilekiln_layernorm2d_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (rows, columns). What is normalised */
  const tilekiln_tensor* gamma; /* dtype of x (columns). One factor a column */
  const tilekiln_tensor* beta; /* dtype of x (columns); or null. Added last, one number a column; null: 0 */
  const tilekiln_tensor* y; /* dtype of x (rows, columns). The normalised rows */
  const tilekiln_tensor* residual; /* dtype of x (rows, columns); or null. Added to x first */
  const tilekiln_tensor* residual_out; /* dtype of x (rows, columns); or null. x + residual */
  const tilekiln_tensor* mean; /* fp32 (rows); or null. Of each row */
  const tilekiln_tensor* inv_std; /* fp32 (rows); or null. 1 / sqrt(variance + epsilon) of each row */
  float epsilon; /* added to the variance */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_layernorm2d_args;

/* epsilon 1e-5, instance -1. Then set x, gamma, y and what else is wanted. */
static inline tilekiln_layernorm2d_args tilekiln_layernorm2d_defaults(void) {
  TILEKILN_ZEROED(tilekiln_layernorm2d_args, args);
  args.epsilon = 1e-05f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_layernorm2d(const tilekiln_layernorm2d_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_layernorm2d_find(const tilekiln_layernorm2d_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_layernorm2d_why(const tilekiln_layernorm2d_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
