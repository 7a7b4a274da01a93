/* SPDX-License-Identifier: MIT */
/* topk_gating.h - Made by `python -m codegen operators --write` from kernels/moe/topk_gating/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_TOPK_GATING_H
#define TILEKILN_OPERATORS_TOPK_GATING_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Routing: the topk experts of each token by scores of their logits, with a correction of the choice, groups, scaling and shared experts.
 *
 * x (tokens, experts), bias (experts), weights and indices (tokens, topk + shared). The score s of each logit is fp32; an expert is chosen by
 * its key s + bias, those of the highest first, of equal keys the one with the lower index. With groups the experts are so many groups of
 * equal length that follow each other, and only those of the topk_groups best groups are chosen from: by the sum of a group's two highest
 * keys (group_score two), or its highest (largest). A weight is s without bias; with renormalise it is divided by the sum of the chosen
 * weights + 1e-20; then it is multiplied by scaling. The shared experts, experts, experts + 1, .., follow in the last slots, each with
 * weight shared_weight.
 *
 * These are the routers of DeepSeek-V2 (softmax, groups by largest), DeepSeek-V3 and GLM-4 (sigmoid, bias, groups by two), DeepSeek-V4
 * (sqrtsoftplus, bias), Llama 4 (sigmoid), gpt-oss, Mixtral and Qwen3 (softmax, as topk_softmax).
 *
 * A key of -inf stands last. A row that holds a NaN, with a bias of NaN every row, for softmax also one that holds +inf or nothing but
 * -inf, and for sqrtsoftplus one that holds +inf, has weights NaN and indices 0, 1, ..; shared experts stay as they are.
 *
 * Rows may have any stride, the last dimension is contiguous. Results share memory with nothing. */
typedef struct tilekiln_topk_gating_args {
  size_t size; /* sizeof(tilekiln_topk_gating_args): set by tilekiln_topk_gating_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (tokens, experts). Logits of the router */
  const tilekiln_tensor* bias; /* fp32 (experts); or null. What is added to scores for the choice, not to weights */
  int32_t topk; /* experts of a token */
  int32_t score; /* 0 (softmax), 1 (sigmoid) or 2 (sqrtsoftplus). What a logit becomes */
  int32_t groups; /* groups of experts */
  int32_t topk_groups; /* groups that experts of a token are chosen from */
  int32_t group_score; /* 0 (two) or 1 (largest). Of a group: the sum of its two highest keys, or the highest */
  int32_t renormalise; /* 0 or 1. yes: the weights of a token are divided by their sum */
  float scaling; /* what weights are multiplied by last */
  int32_t shared; /* experts of every token, in the last slots */
  float shared_weight; /* their weight */
  const tilekiln_tensor* weights; /* fp32. (tokens, topk + shared), of the chosen experts */
  const tilekiln_tensor* indices; /* int32. (tokens, topk + shared), which they are */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_topk_gating_args;

/* topk 1, score softmax, groups 1, topk_groups 1, group_score two, scaling 1, shared_weight 1, instance -1. Then set x, weights, indices, topk and
 * what else is wanted. */
static inline tilekiln_topk_gating_args tilekiln_topk_gating_defaults(void) {
  TILEKILN_ZEROED(tilekiln_topk_gating_args, args);
  args.topk = 1;
  args.groups = 1;
  args.topk_groups = 1;
  args.scaling = 1.0f;
  args.shared_weight = 1.0f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_topk_gating(const tilekiln_topk_gating_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_topk_gating_find(const tilekiln_topk_gating_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_topk_gating_why(const tilekiln_topk_gating_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
