/* SPDX-License-Identifier: MIT */
/* gelu_and_mul_bwd.h - Made by `python -m codegen operators --write` from kernels/norm/gelu_and_mul_bwd/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_GELU_AND_MUL_BWD_H
#define TILEKILN_OPERATORS_GELU_AND_MUL_BWD_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Gradients of gelu_and_mul: dgate and dup from dy.
 *
 * dy, gate, up, dgate, dup (rows, columns): dgate = dy up gelu'(gate), dup = dy gelu(gate). Everything is fp32, rounded once. Rows may have
 * any stride, the last dimension is contiguous. dgate may be gate, and dup up: the same memory with the same strides; otherwise results
 * share memory with nothing. */
typedef struct tilekiln_gelu_and_mul_bwd_args {
  size_t size; /* sizeof(tilekiln_gelu_and_mul_bwd_args): set by tilekiln_gelu_and_mul_bwd_defaults */
  const tilekiln_tensor* dy; /* fp32, fp16 or bf16 (rows, columns). The gradient of y */
  const tilekiln_tensor* gate; /* dtype of dy (rows, columns). As in the forward */
  const tilekiln_tensor* up; /* dtype of dy (rows, columns). As in the forward */
  const tilekiln_tensor* dgate; /* dtype of dy (rows, columns). The gradient of gate */
  const tilekiln_tensor* dup; /* dtype of dy (rows, columns). The gradient of up */
  int32_t approximate; /* 0 (none) or 1 (tanh). none: gelu itself; tanh: by a tanh */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_gelu_and_mul_bwd_args;

/* instance -1. Then set dy, gate, up, dgate and dup. */
static inline tilekiln_gelu_and_mul_bwd_args tilekiln_gelu_and_mul_bwd_defaults(void) {
  TILEKILN_ZEROED(tilekiln_gelu_and_mul_bwd_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_gelu_and_mul_bwd(const tilekiln_gelu_and_mul_bwd_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_gelu_and_mul_bwd_find(const tilekiln_gelu_and_mul_bwd_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_gelu_and_mul_bwd_why(const tilekiln_gelu_and_mul_bwd_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
