/* SPDX-License-Identifier: MIT */
/* gelu_and_mul.h - Made by `python -m codegen operators --write` from kernels/norm/gelu_and_mul/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_GELU_AND_MUL_H
#define TILEKILN_OPERATORS_GELU_AND_MUL_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Gated GELU: y = gelu(gate) up, exact or by its tanh, as in the feed-forward layers of Gemma.
 *
 * gate, up, y (rows, columns). gelu(x) = x (1 + erf(x / sqrt(2))) / 2, with approximate tanh x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
 * gate and up may be the two halves of the columns of one array: rows have any stride, the last dimension is contiguous. Everything is fp32,
 * and y is rounded once; gelu itself is off by 1.5e-7 |x| / 2 more, of erf. gelu(-inf) is 0; a NaN of either makes y NaN.
 *
 * y may be gate: the same memory with the same strides; otherwise it shares no memory with them. */
typedef struct tilekiln_gelu_and_mul_args {
  size_t size; /* sizeof(tilekiln_gelu_and_mul_args): set by tilekiln_gelu_and_mul_defaults */
  const tilekiln_tensor* gate; /* fp32, fp16 or bf16 (rows, columns). What gelu is taken of */
  const tilekiln_tensor* up; /* dtype of gate (rows, columns). What that is multiplied by */
  const tilekiln_tensor* y; /* dtype of gate (rows, columns). gelu(gate) up */
  int32_t approximate; /* 0 (none) or 1 (tanh). none: gelu itself; tanh: by a tanh */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_gelu_and_mul_args;

/* instance -1. Then set gate, up and y. */
static inline tilekiln_gelu_and_mul_args tilekiln_gelu_and_mul_defaults(void) {
  TILEKILN_ZEROED(tilekiln_gelu_and_mul_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_gelu_and_mul(const tilekiln_gelu_and_mul_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_gelu_and_mul_find(const tilekiln_gelu_and_mul_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_gelu_and_mul_why(const tilekiln_gelu_and_mul_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
