/* SPDX-License-Identifier: MIT */
/* causal_conv1d_bwd.h - Made by `python -m codegen operators --write` from kernels/linear_attention/causal_conv1d_bwd/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_CAUSAL_CONV1D_BWD_H
#define TILEKILN_OPERATORS_CAUSAL_CONV1D_BWD_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Gradients of causal_conv1d: dx and dweight from dy, and those of the bias and the initial state.
 *
 * dy, x, dx (batch, seqlen, channels), weight, dweight (channels, width), bias, dbias (channels), initial_state, dinitial_state and
 * dfinal_state, the gradient of final_state, (batch, channels, width - 1). With z as in causal_conv1d and s = 1 / (1 + exp(-z)):
 * dz = dy, or with activation silu dy s (1 + z (1 - s)); dx[t] = the sum over j of weight[j] dz[t + width - 1 - j], and dfinal_state's
 * where it holds x[t]; dweight[j] = the sum over t of dz[t] x[t - width + 1 + j], dbias = that of dz. With cu_seqlens as causal_conv1d.
 *
 * Everything is fp32, rounded once; sums over tokens are taken over blocks of 128, then over blocks and sequences, in one order whatever
 * the threads. Arrays of three dimensions may have any strides. Results share memory with nothing. */
typedef struct tilekiln_causal_conv1d_bwd_args {
  size_t size; /* sizeof(tilekiln_causal_conv1d_bwd_args): set by tilekiln_causal_conv1d_bwd_defaults */
  const tilekiln_tensor* dy; /* dtype of x (batch, seqlen, channels). The gradient of y */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (batch, seqlen, channels). As in the forward */
  const tilekiln_tensor* weight; /* dtype of x (channels, width). As in the forward */
  const tilekiln_tensor* bias; /* dtype of x (channels); or null. As in the forward */
  const tilekiln_tensor* initial_state; /* dtype of x; or null. As in the forward */
  const tilekiln_tensor* cu_seqlens; /* int32 (sequences + 1); or null. As in the forward */
  const tilekiln_tensor* dfinal_state; /* dtype of x; or null. The gradient of final_state; null: 0 */
  int32_t activation; /* 0 (none) or 1 (silu). As in the forward */
  const tilekiln_tensor* dx; /* dtype of x (batch, seqlen, channels). The gradient of x */
  const tilekiln_tensor* dweight; /* dtype of weight (channels, width). The gradient of weight */
  const tilekiln_tensor* dbias; /* dtype of x (channels); or null. The gradient of bias */
  const tilekiln_tensor* dinitial_state; /* dtype of x; or null. The gradient of initial_state */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_causal_conv1d_bwd_args;

/* activation none, instance -1. Then set dy, x, weight, dx, dweight and what else is wanted. */
static inline tilekiln_causal_conv1d_bwd_args tilekiln_causal_conv1d_bwd_defaults(void) {
  TILEKILN_ZEROED(tilekiln_causal_conv1d_bwd_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_causal_conv1d_bwd(const tilekiln_causal_conv1d_bwd_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_causal_conv1d_bwd_find(const tilekiln_causal_conv1d_bwd_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_causal_conv1d_bwd_why(const tilekiln_causal_conv1d_bwd_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
