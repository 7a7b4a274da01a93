/* SPDX-License-Identifier: MIT */
/* causal_conv1d.h - Made by `python -m codegen operators --write` from kernels/linear_attention/causal_conv1d/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_CAUSAL_CONV1D_H
#define TILEKILN_OPERATORS_CAUSAL_CONV1D_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Causal convolution along tokens, each channel by its own 2 to 4 weights, with a state: that of Mamba, Qwen3-Next, Kimi Linear and LFM2.
 *
 * x, y (batch, seqlen, channels), weight (channels, width), bias (channels), initial_state, final_state (batch, channels, width - 1).
 * z[t] = bias + the sum over j of weight[j] x[t - width + 1 + j], y = z, or with activation silu z / (1 + exp(-z)). Tokens before the
 * first are initial_state's, 0 without one; final_state has the last width - 1 tokens of both together, so a sequence may come in
 * parts, of one token too. With cu_seqlens, int32 (sequences + 1), the batch is 1 and its tokens [cu_seqlens[i], cu_seqlens[i + 1]) are
 * sequence i, which starts at its own state: those are (sequences, channels, width - 1). cu_seqlens is read before the call returns.
 *
 * Everything is fp32, the oldest tap first, and y is rounded once: parts of a sequence give the bits of the whole. silu of -inf is 0 to 2^-100.
 * The arrays of three dimensions may have any strides: an array (batch, channels, seqlen) is its view (batch, seqlen, channels).
 * final_state may be initial_state: the same memory with the same strides; otherwise results share memory with nothing. */
typedef struct tilekiln_causal_conv1d_args {
  size_t size; /* sizeof(tilekiln_causal_conv1d_args): set by tilekiln_causal_conv1d_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (batch, seqlen, channels). Sequences */
  const tilekiln_tensor* weight; /* dtype of x (channels, width). Taps of each channel, the last for the token itself */
  const tilekiln_tensor* bias; /* dtype of x (channels); or null. What is added to a channel */
  const tilekiln_tensor* initial_state; /* dtype of x; or null. (batch, channels, width - 1), the tokens before the first */
  const tilekiln_tensor* cu_seqlens; /* int32 (sequences + 1); or null. The first token of each sequence, and the end of the last; null: each batch is
     one */
  int32_t activation; /* 0 (none) or 1 (silu). What is applied to the sum */
  const tilekiln_tensor* y; /* dtype of x (batch, seqlen, channels). The result */
  const tilekiln_tensor* final_state; /* dtype of x; or null. (batch, channels, width - 1), the last tokens */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_causal_conv1d_args;

/* activation none, instance -1. Then set x, weight, y and what else is wanted. */
static inline tilekiln_causal_conv1d_args tilekiln_causal_conv1d_defaults(void) {
  TILEKILN_ZEROED(tilekiln_causal_conv1d_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_causal_conv1d(const tilekiln_causal_conv1d_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_causal_conv1d_find(const tilekiln_causal_conv1d_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_causal_conv1d_why(const tilekiln_causal_conv1d_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
