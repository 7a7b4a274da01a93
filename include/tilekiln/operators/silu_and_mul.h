/* SPDX-License-Identifier: MIT */
/* silu_and_mul.h - Made by `python -m codegen operators --write` from kernels/norm/silu_and_mul/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_SILU_AND_MUL_H
#define TILEKILN_OPERATORS_SILU_AND_MUL_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Gated SiLU: y = silu(gate) up, silu(x) = x / (1 + exp(-x)), as in the feed-forward layers of Llama and its like.
 *
 * gate, up, y (rows, columns). They may be the two halves of the columns of one array, as in SiluAndMul of vLLM and the Hub: rows have any
 * stride, the last dimension is contiguous. Everything is fp32, and y is rounded once. silu(-inf) is 0; a NaN of either makes y NaN.
 *
 * y may be gate: the same memory with the same strides; otherwise it shares no memory with them. */
typedef struct tilekiln_silu_and_mul_args {
  size_t size; /* sizeof(tilekiln_silu_and_mul_args): set by tilekiln_silu_and_mul_defaults */
  const tilekiln_tensor* gate; /* fp32, fp16 or bf16 (rows, columns). What silu is taken of */
  const tilekiln_tensor* up; /* dtype of gate (rows, columns). What that is multiplied by */
  const tilekiln_tensor* y; /* dtype of gate (rows, columns). silu(gate) up */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_silu_and_mul_args;

/* instance -1. Then set gate, up and y. */
static inline tilekiln_silu_and_mul_args tilekiln_silu_and_mul_defaults(void) {
  TILEKILN_ZEROED(tilekiln_silu_and_mul_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_silu_and_mul(const tilekiln_silu_and_mul_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_silu_and_mul_find(const tilekiln_silu_and_mul_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_silu_and_mul_why(const tilekiln_silu_and_mul_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
