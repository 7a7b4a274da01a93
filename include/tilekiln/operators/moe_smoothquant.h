/* SPDX-License-Identifier: MIT */
/* moe_smoothquant.h - Made by `python -m codegen operators --write` from kernels/norm/moe_smoothquant/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_MOE_SMOOTHQUANT_H
#define TILEKILN_OPERATORS_MOE_SMOOTHQUANT_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Tokens quantised for each of their experts: y[i][t] y_scale[i][t] = x[t] smooth_scale[topk_ids[t][i]].
 *
 * x (tokens, columns), smooth_scale (experts, columns), topk_ids (tokens, topk), y (topk, tokens, columns), y_scale (topk, tokens). With
 * v a row of x times that of smooth_scale, in fp32:
 * y_scale = max |v| / 127 of each row, to fp8 max |v| / 448, in fp32; y = v / y_scale, rounded to nearest even: y y_scale is v again, to
 * half a step. A row of zeros, or of numbers below 2^-100, has y_scale 0 and zeros; one that holds a NaN or an infinity y_scale NaN and zeros.
 * An id outside of 0 to experts - 1, such as that of an expert elsewhere, gives y_scale 0 and zeros.
 *
 * All but the last dimension may have any stride. Results share memory with nothing. */
typedef struct tilekiln_moe_smoothquant_args {
  size_t size; /* sizeof(tilekiln_moe_smoothquant_args): set by tilekiln_moe_smoothquant_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (tokens, columns). The tokens */
  const tilekiln_tensor* smooth_scale; /* fp32 (experts, columns). One factor a column for each expert */
  const tilekiln_tensor* topk_ids; /* int32 (tokens, topk). The experts of each token */
  const tilekiln_tensor* y; /* dtype of x; of fp32: int8 or fp8; of fp16: int8 or fp8; of bf16: int8 or fp8 (topk, tokens, columns). The quantised
     tokens */
  const tilekiln_tensor* y_scale; /* fp32 (topk, tokens). What a row of y is to be multiplied by */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_moe_smoothquant_args;

/* All fields absent, instance -1. Then set x, smooth_scale, topk_ids, y, y_scale and what else is wanted. */
static inline tilekiln_moe_smoothquant_args tilekiln_moe_smoothquant_defaults(void) {
  TILEKILN_ZEROED(tilekiln_moe_smoothquant_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_moe_smoothquant(const tilekiln_moe_smoothquant_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_moe_smoothquant_find(const tilekiln_moe_smoothquant_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_moe_smoothquant_why(const tilekiln_moe_smoothquant_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
