/* SPDX-License-Identifier: MIT */
/* gated_delta_rule_bwd.h - Made by `python -m codegen operators --write` from kernels/linear_attention/gated_delta_rule_bwd/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_GATED_DELTA_RULE_BWD_H
#define TILEKILN_OPERATORS_GATED_DELTA_RULE_BWD_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Gradients of gated_delta_rule: dq, dk, dv, dg and dbeta from dout, and that of the initial state.
 *
 * Arguments of gated_delta_rule as they were there, and dout, the gradient of out; dfinal_state, that of final_state, fp32. Gradients have
 * the shapes and dtypes of what they belong to. With D the gradient of the state after a token, from the last token to the first, and
 * e = v - S^T k, u = beta e (of the state S that exp(g) has already made less):
 *
 *     D = D + scale q dout^T    dq = scale S' dout, S' = S + k u^T    dv = beta D^T k, dbeta = e D^T k
 *     dk = D u - S dv    D = D - k dv^T    dg = the sum of S D, of a row for a gate of channels    D = exp(g) D
 *
 * and dinitial_state is D before the first token. With update add e = v, and dk = D u, D stays. Heads of v that share one of k have their
 * sums in dq and dk. A gate below -100 has the gradient 0.
 *
 * Chunks of 64 tokens from the last to the first; the states before each are kept, 1 / 64 of a state a token, and all else is computed
 * again. Everything is fp32, rounded once. dg is summed over the tokens of a chunk, and is as exact as they are large.
 * The last dimension is contiguous. Results share memory with nothing. */
typedef struct tilekiln_gated_delta_rule_bwd_args {
  size_t size; /* sizeof(tilekiln_gated_delta_rule_bwd_args): set by tilekiln_gated_delta_rule_bwd_defaults */
  const tilekiln_tensor* dout; /* dtype of q (batch, seqlen, nhead_v, hdim_v). The gradient of out */
  const tilekiln_tensor* q; /* fp32, fp16 or bf16 (batch, seqlen, nhead_k, hdim_k). As in the forward */
  const tilekiln_tensor* k; /* dtype of q (batch, seqlen, nhead_k, hdim_k). As in the forward */
  const tilekiln_tensor* v; /* dtype of q (batch, seqlen, nhead_v, hdim_v). As in the forward */
  const tilekiln_tensor* g; /* fp32 (batch, seqlen, nhead_v), channel: (batch, seqlen, nhead_v, hdim_k). As in the forward */
  const tilekiln_tensor* beta; /* dtype of q; of fp32: fp32; of fp16: fp16 or fp32; of bf16: bf16 or fp32 (batch, seqlen, nhead_v). As in the forward */
  const tilekiln_tensor* initial_state; /* fp32; or null. As in the forward */
  const tilekiln_tensor* cu_seqlens; /* int32 (sequences + 1); or null. As in the forward */
  const tilekiln_tensor* dfinal_state; /* fp32; or null. The gradient of final_state; null: 0 */
  const float* scale; /* null: 1 / sqrt(hdim_k) */
  int32_t qk_l2norm; /* 0 or 1. As in the forward */
  int32_t update; /* 0 (delta) or 1 (add). As in the forward */
  const tilekiln_tensor* dq; /* dtype of q (batch, seqlen, nhead_k, hdim_k). The gradient of q */
  const tilekiln_tensor* dk; /* dtype of k (batch, seqlen, nhead_k, hdim_k). The gradient of k */
  const tilekiln_tensor* dv; /* dtype of v (batch, seqlen, nhead_v, hdim_v). The gradient of v */
  const tilekiln_tensor* dg; /* fp32 (batch, seqlen, nhead_v), channel: (batch, seqlen, nhead_v, hdim_k). The gradient of g */
  const tilekiln_tensor* dbeta; /* dtype of beta (batch, seqlen, nhead_v). The gradient of beta */
  const tilekiln_tensor* dinitial_state; /* fp32; or null. The gradient of initial_state */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_gated_delta_rule_bwd_args;

/* instance -1. Then set dout, q, k, v, g, beta, dq, dk, dv, dg, dbeta and what else is wanted. */
static inline tilekiln_gated_delta_rule_bwd_args tilekiln_gated_delta_rule_bwd_defaults(void) {
  TILEKILN_ZEROED(tilekiln_gated_delta_rule_bwd_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_gated_delta_rule_bwd(const tilekiln_gated_delta_rule_bwd_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_gated_delta_rule_bwd_find(const tilekiln_gated_delta_rule_bwd_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_gated_delta_rule_bwd_why(const tilekiln_gated_delta_rule_bwd_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
