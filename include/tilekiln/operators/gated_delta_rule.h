/* SPDX-License-Identifier: MIT */
/* gated_delta_rule.h - Made by `python -m codegen operators --write` from kernels/linear_attention/gated_delta_rule/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_GATED_DELTA_RULE_H
#define TILEKILN_OPERATORS_GATED_DELTA_RULE_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* The gated delta rule, with a state: linear attention of Qwen3-Next and Qwen3.5, with a gate for each channel of Kimi Linear (KDA), without the
 * correction of Mamba-2 (SSD).
 *
 * q, k (batch, seqlen, nhead_k, hdim_k), v, out (batch, seqlen, nhead_v, hdim_v), beta (batch, seqlen, nhead_v), g of the same lengths, or
 * with one number more for each channel of k, (batch, seqlen, nhead_v, hdim_k). A head of k serves nhead_v / nhead_k heads of v that
 * follow each other. The state S of a head, (hdim_k, hdim_v), is initial_state's before the first token, or 0, and final_state after the last; both
 * are fp32. At each token:
 *
 *     S = exp(g) S    S = S + k (beta (v - S^T k))^T    out = scale S^T q
 *
 * With update add the second is S = S + k (beta v)^T: gated linear attention, and the state space duality of Mamba-2 (SSD) with q its C, k its
 * B, v its x, beta its time steps, g = beta A and scale 1.
 *
 * g is the log of what is kept, at most 0; below -100 it counts as -100. With qk_l2norm each q and k is divided by
 * sqrt(the sum of its squares + 1e-6) first. With cu_seqlens, int32 (sequences + 1), the batch is 1 and its tokens [cu_seqlens[i],
 * cu_seqlens[i + 1]) are sequence i, which has a state of its own: those are (sequences, nhead_v, hdim_k, hdim_v). cu_seqlens is read
 * before the call returns.
 *
 * (Yang et al., Gated Delta Networks, 2024; Kimi Team, Kimi Linear, 2025; Dao and Gu, Transformers are SSMs, 2024.) Calls of 16 tokens or more go in
 * chunks of 64: with G the sums
 * of g in a chunk, the corrections U solve (1 + L) U = beta (V - exp(G) K S), L[i, j] = beta[i] exp(G[i] - G[j]) k[i] k[j] for j < i. Everything is
 * fp32,
 * and out is rounded once; chunks and steps differ by rounding only. A token sees those before it alone, NaN and infinities included.
 *
 * The last dimension is contiguous. final_state may be initial_state: the same memory with the same strides; otherwise results share
 * memory with nothing. */
typedef struct tilekiln_gated_delta_rule_args {
  size_t size; /* sizeof(tilekiln_gated_delta_rule_args): set by tilekiln_gated_delta_rule_defaults */
  const tilekiln_tensor* q; /* fp32, fp16 or bf16 (batch, seqlen, nhead_k, hdim_k). Queries */
  const tilekiln_tensor* k; /* dtype of q (batch, seqlen, nhead_k, hdim_k). Keys */
  const tilekiln_tensor* v; /* dtype of q (batch, seqlen, nhead_v, hdim_v). Values */
  const tilekiln_tensor* g; /* fp32 (batch, seqlen, nhead_v), channel: (batch, seqlen, nhead_v, hdim_k). Log of what the state keeps */
  const tilekiln_tensor* beta; /* dtype of q; of fp32: fp32; of fp16: fp16 or fp32; of bf16: bf16 or fp32 (batch, seqlen, nhead_v). Share of a
     correction that is made */
  const tilekiln_tensor* initial_state; /* fp32; or null. The state before the first token */
  const tilekiln_tensor* cu_seqlens; /* int32 (sequences + 1); or null. The first token of each sequence, and the end of the last; null: each batch is
     one */
  const float* scale; /* null: 1 / sqrt(hdim_k) */
  int32_t qk_l2norm; /* 0 or 1. yes: q and k are normalised first */
  int32_t update; /* 0 (delta) or 1 (add). delta: a token corrects what the state has for its key; add: it adds to the state */
  const tilekiln_tensor* out; /* dtype of v (batch, seqlen, nhead_v, hdim_v). The values that are read */
  const tilekiln_tensor* final_state; /* fp32; or null. The state after the last token */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_gated_delta_rule_args;

/* instance -1. Then set q, k, v, g, beta, out and what else is wanted. */
static inline tilekiln_gated_delta_rule_args tilekiln_gated_delta_rule_defaults(void) {
  TILEKILN_ZEROED(tilekiln_gated_delta_rule_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_gated_delta_rule(const tilekiln_gated_delta_rule_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_gated_delta_rule_find(const tilekiln_gated_delta_rule_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_gated_delta_rule_why(const tilekiln_gated_delta_rule_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
