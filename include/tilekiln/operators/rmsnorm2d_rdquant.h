/* SPDX-License-Identifier: MIT */
/* rmsnorm2d_rdquant.h - Made by `python -m codegen operators --write` from kernels/norm/rmsnorm2d_rdquant/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_RMSNORM2D_RDQUANT_H
#define TILEKILN_OPERATORS_RMSNORM2D_RDQUANT_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* rmsnorm2d, quantised: y y_scale = x / sqrt(mean(x^2) + epsilon) gamma, times smooth_scale where given, with a y_scale a row (dynamic quantisation).
 *
 * x, residual, residual_out, unquantised, y (rows, columns), gamma, smooth_scale (columns), y_scale (rows). v is a row of rmsnorm2d
 * before any rounding, times smooth_scale; unquantised is that row before smooth_scale, in the dtype of x.
 * y_scale = max |v| / 127 of each row, to fp8 max |v| / 448, in fp32; y = v / y_scale, rounded to nearest even: y y_scale is v again, to
 * half a step. A row of zeros, or of numbers below 2^-100, has y_scale 0 and zeros; one that holds a NaN or an infinity y_scale NaN and zeros.
 * x + residual is rounded to the dtype of x before anything else. With residual_out it is add_rmsnorm2d_rdquant of CK's examples.
 *
 * Rows may have any stride, the last dimension is contiguous. residual_out may be residual: the same memory with the same strides;
 * otherwise results share memory with nothing. */
typedef struct tilekiln_rmsnorm2d_rdquant_args {
  size_t size; /* sizeof(tilekiln_rmsnorm2d_rdquant_args): set by tilekiln_rmsnorm2d_rdquant_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (rows, columns). What is normalised */
  const tilekiln_tensor* gamma; /* dtype of x (columns). One factor a column */
  const tilekiln_tensor* y; /* dtype of x; of fp32: int8 or fp8; of fp16: int8 or fp8; of bf16: int8 or fp8 (rows, columns). The quantised rows */
  const tilekiln_tensor* y_scale; /* fp32 (rows). What a row of y is to be multiplied by */
  const tilekiln_tensor* smooth_scale; /* fp32 (columns); or null. One factor a column, before quantisation; null: 1 */
  const tilekiln_tensor* residual; /* dtype of x (rows, columns); or null. Added to x first */
  const tilekiln_tensor* residual_out; /* dtype of x (rows, columns); or null. x + residual */
  const tilekiln_tensor* unquantised; /* dtype of x (rows, columns); or null. The rows before smooth_scale and quantisation */
  float epsilon; /* added to the mean of the squares */
  int32_t rounding; /* 0 (pytorch) or 1 (transformers). transformers: x / sqrt(..) is rounded before it is multiplied by gamma */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_rmsnorm2d_rdquant_args;

/* epsilon 1.0e-6, instance -1. Then set x, gamma, y, y_scale and what else is wanted. */
static inline tilekiln_rmsnorm2d_rdquant_args tilekiln_rmsnorm2d_rdquant_defaults(void) {
  TILEKILN_ZEROED(tilekiln_rmsnorm2d_rdquant_args, args);
  args.epsilon = 1e-06f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_rmsnorm2d_rdquant(const tilekiln_rmsnorm2d_rdquant_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_rmsnorm2d_rdquant_find(const tilekiln_rmsnorm2d_rdquant_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_rmsnorm2d_rdquant_why(const tilekiln_rmsnorm2d_rdquant_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
