/* SPDX-License-Identifier: MIT */
/* smoothquant.h - Made by `python -m codegen operators --write` from kernels/norm/smoothquant/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_SMOOTHQUANT_H
#define TILEKILN_OPERATORS_SMOOTHQUANT_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Rows quantised each with a scale of its own: y y_scale = x smooth_scale.
 *
 * x, y (rows, columns), smooth_scale (columns), y_scale (rows). With v a row of x times smooth_scale, in fp32:
 * y_scale = max |v| / 127 of each row, to fp8 max |v| / 448, in fp32; y = v / y_scale, rounded to nearest even: y y_scale is v again, to
 * half a step. A row of zeros, or of numbers below 2^-100, has y_scale 0 and zeros; one that holds a NaN or an infinity y_scale NaN and zeros.
 *
 * Rows may have any stride, the last dimension is contiguous. Results share memory with nothing. */
typedef struct tilekiln_smoothquant_args {
  size_t size; /* sizeof(tilekiln_smoothquant_args): set by tilekiln_smoothquant_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (rows, columns). What is quantised */
  const tilekiln_tensor* smooth_scale; /* fp32 (columns); or null. One factor a column; null: 1 */
  const tilekiln_tensor* y; /* dtype of x; of fp32: int8 or fp8; of fp16: int8 or fp8; of bf16: int8 or fp8 (rows, columns). The quantised rows */
  const tilekiln_tensor* y_scale; /* fp32 (rows). What a row of y is to be multiplied by */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_smoothquant_args;

/* All fields absent, instance -1. Then set x, smooth_scale, y, y_scale and what else is wanted. */
static inline tilekiln_smoothquant_args tilekiln_smoothquant_defaults(void) {
  TILEKILN_ZEROED(tilekiln_smoothquant_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_smoothquant(const tilekiln_smoothquant_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_smoothquant_find(const tilekiln_smoothquant_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_smoothquant_why(const tilekiln_smoothquant_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
