/* SPDX-License-Identifier: MIT */
/* fused_moe.h - Made by `python -m codegen operators --write` from kernels/moe/fused_moe/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_FUSED_MOE_H
#define TILEKILN_OPERATORS_FUSED_MOE_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* The experts of a mixture: out[t] = sum over the slots s of topk_weights[t, s] down[e] (act(gate[e] x[t]) * (up[e] x[t])), e = topk_ids[t, s].
 *
 * x, out (tokens, hidden), topk_ids, topk_weights (tokens, topk). gate_up (experts, 2 inter, hidden) has the rows of gate, then those of up;
 * with (experts, inter, hidden) there is no up, and nothing is multiplied. down (experts, hidden, inter). Both have the dtype of x, and of
 * their last two dimensions one stride is 1, the same for both.
 *
 * With activation clamped_swiglu, of gpt-oss, act(g) * u is (u' + 1) g' sigmoid(alpha g'), g' = min(g, limit) and u' = u within -limit and limit.
 *
 * Packed, which is faster from 17 rows an expert on, each expert is panels as flatmm has them: gate_up (experts, panels, words, 64, word
 * elements), those of gate, then as many of up, down (experts, panels, words, 64, word elements); what is past their ends is 0. int8 and int4 (uint8)
 * are panels as flatmm_quant has them, with gate_up_scale and down_scale (experts, panels, groups, 64), a factor a row and `group` numbers
 * along it, of uint8 those of MXFP4 as flatmm_quant has it; hidden and inter are then multiples of 8. Rows of x, and between the products of fp32,
 * become int8, max |.| / 127 being
 * the factor of a row, unless quantise_x is no, with int4 and mxfp4: rows, and those between, are then multiplied in the dtype of x; with
 * smooth_scale (experts, hidden) and down_smooth_scale (experts, inter), which come together, each is multiplied by that of its
 * expert before. In Python `tilekiln.PackedExperts` packs and quantises, and `tilekiln.experts` takes it.
 *
 * fp8 is e4m3, of matrices whose rows are contiguous, with fp32 factors of blocks of 128 x 128: gate_up_scale (experts, rows / 128,
 * hidden / 128), rounded up, and down_scale (experts, hidden / 128, inter / 128), as DeepSeek-V3 has them; hidden and inter are then multiples of
 * 128.
 * Rows of x, and between the products of fp32, become e4m3, 128 numbers by a factor of their own, max |.| / 448 of them; a product is as gemm has it
 * with a_scale and b_scale.
 *
 * An id outside of 0 to experts - 1 is no expert's; a token without one is 0. With expert_mask ids count all experts, and gate_up and
 * down hold those whose number there is not 0, in their order. An expert may have any number of tokens. With local_tokens only so many
 * tokens count, of those that there are. gate_up_bias and down_bias are added to the products, gate's before the activation; of panels they
 * are as flatmm has them, 0 past their ends.
 *
 * Sums of a product are fp32, in one order; what goes into the second product is rounded to the dtype of x, gate's activation too.
 * The products of a token are summed in fp32 in the order of experts, then rounded once: results have the same bits for any number of
 * threads. Special values as in gemm. Rows of x, out, ids and weights may have any stride, experts too; out may overlap no other array.
 * The structs a pointer here names are read before the call returns; the data of the arrays must stay until the stream has run the call. */
typedef struct tilekiln_fused_moe_args {
  size_t size; /* sizeof(tilekiln_fused_moe_args): set by tilekiln_fused_moe_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (tokens, hidden). The tokens */
  const tilekiln_tensor* topk_ids; /* int32 (tokens, topk). The experts of each token */
  const tilekiln_tensor* topk_weights; /* fp32 (tokens, topk). Their weights */
  const tilekiln_tensor* gate_up; /* dtype of x; of fp32: fp32; of fp16: fp16, int8, uint8 or fp8; of bf16: bf16, int8, uint8 or fp8 (experts,
     gate_up_rows, hidden), packed: (experts, panels, words, lanes, word elements). The first matrix of each expert */
  const tilekiln_tensor* down; /* dtype of gate_up (experts, hidden, inter), packed: (experts, panels, words, lanes, word elements). The second */
  const tilekiln_tensor* gate_up_scale; /* fp32 or uint8; or null. Factors of a quantised gate_up */
  const tilekiln_tensor* down_scale; /* dtype of gate_up_scale; or null. Factors of a quantised down */
  const tilekiln_tensor* smooth_scale; /* fp32 (experts, hidden); or null. What rows of x are multiplied by before they become int8, by expert */
  const tilekiln_tensor* down_smooth_scale; /* fp32; or null. The same of the rows between the products */
  const tilekiln_tensor* expert_mask; /* int32; or null. (all experts): 0 for those that are elsewhere */
  const tilekiln_tensor* gate_up_bias; /* fp32; or null. (experts, 2 inter), or (experts, inter) without up: added to the first products; of panels
     (experts, panels, 64) */
  const tilekiln_tensor* down_bias; /* fp32; or null. (experts, hidden): added to the second product, before the router's weight; of panels (experts,
     panels, 64) */
  const tilekiln_tensor* local_tokens; /* int32; or null. How many tokens count, read when the call runs; the others are 0; below 0: none */
  const tilekiln_tensor* out; /* dtype of x (tokens, hidden). The weighted sums */
  int32_t group; /* numbers along a row of a weight that share a factor */
  int32_t quantise_x; /* 0 or 1. With quantised weights rows become int8, of fp8 e4m3, before each product; no, of int4: they stay as they are */
  int32_t activation; /* 0 (silu), 1 (gelu), 2 (gelu_tanh), 3 (relu) or 4 (clamped_swiglu). What gate goes through */
  float limit; /* of clamped_swiglu: what gate, and up of either sign, is at most */
  float alpha; /* of clamped_swiglu: what gate is multiplied by inside of the sigmoid, not 0 */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_fused_moe_args;

/* All fields absent, group 32, quantise_x yes, activation silu, limit 7, alpha 1.702, instance -1. Then set x, topk_ids, topk_weights, gate_up, down
 * and out. */
static inline tilekiln_fused_moe_args tilekiln_fused_moe_defaults(void) {
  TILEKILN_ZEROED(tilekiln_fused_moe_args, args);
  args.group = 32;
  args.quantise_x = 1;
  args.limit = 7.0f;
  args.alpha = 1.702f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_fused_moe(const tilekiln_fused_moe_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_fused_moe_find(const tilekiln_fused_moe_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_fused_moe_why(const tilekiln_fused_moe_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
