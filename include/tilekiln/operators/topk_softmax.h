/* SPDX-License-Identifier: MIT */
/* topk_softmax.h - Made by `python -m codegen operators --write` from kernels/moe/topk_softmax/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_TOPK_SOFTMAX_H
#define TILEKILN_OPERATORS_TOPK_SOFTMAX_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Routing: the topk largest elements of softmax(x) of each row, and where they stand.
 *
 * x (tokens, experts), weights and indices (tokens, topk), the largest first, of equal logits the one with the lower index first. The
 * softmax is over all experts, in fp32, in one order whatever the threads; with renormalise the chosen weights are divided by their sum.
 * A logit of -inf has weight 0 and stands last, beside the lowest finite number. A row that holds a NaN or +inf, or nothing but -inf, has
 * weights NaN and indices 0, 1, ..
 *
 * Rows may have any stride, the last dimension is contiguous. Results share memory with nothing. */
typedef struct tilekiln_topk_softmax_args {
  size_t size; /* sizeof(tilekiln_topk_softmax_args): set by tilekiln_topk_softmax_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (tokens, experts). Logits of the router */
  int32_t topk; /* experts of a token */
  int32_t renormalise; /* 0 or 1. yes: the weights of a token sum to 1 */
  const tilekiln_tensor* weights; /* fp32. (tokens, topk), of the chosen experts */
  const tilekiln_tensor* indices; /* int32. (tokens, topk), which they are */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_topk_softmax_args;

/* topk 1, instance -1. Then set x, weights, indices and topk. */
static inline tilekiln_topk_softmax_args tilekiln_topk_softmax_defaults(void) {
  TILEKILN_ZEROED(tilekiln_topk_softmax_args, args);
  args.topk = 1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_topk_softmax(const tilekiln_topk_softmax_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_topk_softmax_find(const tilekiln_topk_softmax_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_topk_softmax_why(const tilekiln_topk_softmax_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
