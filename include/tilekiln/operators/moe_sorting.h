/* SPDX-License-Identifier: MIT */
/* moe_sorting.h - Made by `python -m codegen operators --write` from kernels/moe/moe_sorting/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_MOE_SORTING_H
#define TILEKILN_OPERATORS_MOE_SORTING_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Sorting for a mixture of experts: the tokens of each expert one after the other, padded to whole units, and the expert of each unit.
 *
 * topk_ids, topk_weights (tokens, topk). For each expert in order, its tokens in order: sorted_token_ids holds token | slot << 24, where
 * topk_ids[token][slot] is the expert, and sorted_weights the weight there; then tokens | topk << 24 and 0 up to a multiple of unit.
 * sorted_expert_ids has the expert of each unit; total_tokens_post_pad is (elements that are used, tokens). An expert without
 * tokens has no unit with skip_empty, else one of padding. An id outside of 0 to experts - 1 is no expert's.
 *
 * With expert_mask the experts are those whose number there is not 0, and sorted_expert_ids counts only them. With local_tokens only so
 * many tokens count, of those that there are, and padding holds that number | topk << 24.
 * sorted_token_ids and sorted_weights have room for tokens topk + experts unit - 1 elements (no
 * tokens: experts unit), which is enough for whatever ids; sorted_expert_ids for the units of these. Those of a caller may be shorter, down
 * to tokens topk + experts unit - topk, as other libraries make them (with skip_empty tokens topk + experts (unit - 1)): enough when no
 * token names an expert twice. An expert for which there is no room then is left out, and total_tokens_post_pad[0], more than
 * the length, says so. Past what is used they are not written; new ones are 0 there. out, the buffer that experts will add to, is set to 0.
 *
 * Rows may have any stride, the last dimension is contiguous. Results share memory with nothing. */
typedef struct tilekiln_moe_sorting_args {
  size_t size; /* sizeof(tilekiln_moe_sorting_args): set by tilekiln_moe_sorting_defaults */
  const tilekiln_tensor* topk_ids; /* int32 (tokens, topk). The experts of each token */
  const tilekiln_tensor* topk_weights; /* fp32 (tokens, topk). Their weights */
  int32_t experts; /* how many there are */
  int32_t unit; /* rows of a tile of the products that follow */
  int32_t skip_empty; /* 0 or 1. no: an expert without tokens has a unit of padding */
  const tilekiln_tensor* expert_mask; /* int32; or null. (experts): 0 for those that are elsewhere */
  const tilekiln_tensor* local_tokens; /* int32; or null. How many tokens count, read when the call runs; below 0: none */
  const tilekiln_tensor* sorted_token_ids; /* int32. Token | slot << 24 */
  const tilekiln_tensor* sorted_weights; /* fp32. Their weights */
  const tilekiln_tensor* sorted_expert_ids; /* int32. Of each unit */
  const tilekiln_tensor* total_tokens_post_pad; /* int32. (2): elements that are used, tokens */
  const tilekiln_tensor* out; /* fp32, fp16 or bf16 (tokens, columns); or null. Set to 0 */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_moe_sorting_args;

/* experts 1, unit 32, skip_empty 1, instance -1. Then set topk_ids, topk_weights, experts, the results and what else is wanted. */
static inline tilekiln_moe_sorting_args tilekiln_moe_sorting_defaults(void) {
  TILEKILN_ZEROED(tilekiln_moe_sorting_args, args);
  args.experts = 1;
  args.unit = 32;
  args.skip_empty = 1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_moe_sorting(const tilekiln_moe_sorting_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_moe_sorting_find(const tilekiln_moe_sorting_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_moe_sorting_why(const tilekiln_moe_sorting_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
