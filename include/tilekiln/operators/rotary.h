/* SPDX-License-Identifier: MIT */
/* rotary.h - Made by `python -m codegen operators --write` from kernels/norm/rotary/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_ROTARY_H
#define TILEKILN_OPERATORS_ROTARY_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Rotary position embedding (RoFormer, https://arxiv.org/abs/2104.09864): each pair of a head is turned by the angle of its position.
 *
 * x, y (batch, seqlen, nheads, headdim), cos, sin (table rows, rotary_dim / 2), positions (batch, seqlen), int32 or int64. Of each pair
 * (a, b): (a cos - b sin, a sin + b cos), with the row of the tables that is the token's position, start + its number in positions, or in its
 * sequence.
 * Pairs are elements (i, i + rotary_dim / 2), with interleaved (2i, 2i + 1); elements from rotary_dim on stay. conjugate turns the other
 * way round, which is the backward. With axes (M-RoPE of Qwen2-VL and its kin: time, height, width) a token has a position on each of
 * several axes, positions (axes, batch, seqlen), and pair i is turned by that of axis axes[i]; on CPUs. Everything is fp32, and y is rounded once. A
 * token whose position, on any axis, is outside of the tables stays
 * as it is, and so do all where axes has a number that is no axis.
 *
 * All but the last dimension of x and y may have any stride. y may be x: the same memory with the same strides; otherwise it shares no
 * memory with anything. */
typedef struct tilekiln_rotary_args {
  size_t size; /* sizeof(tilekiln_rotary_args): set by tilekiln_rotary_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (batch, seqlen, nheads, headdim). Heads of queries or keys */
  const tilekiln_tensor* cos; /* dtype of x; of fp32: fp32; of fp16: fp16 or fp32; of bf16: bf16 or fp32 (table rows, rotary_dim / 2). Cosines of the
     angles of each position */
  const tilekiln_tensor* sin; /* dtype of cos (table rows, rotary_dim / 2). Their sines */
  const tilekiln_tensor* positions; /* int32 or int64 (batch, seqlen), axes: (axes, batch, seqlen); or null. The position of each token */
  int32_t start; /* what is added to the positions */
  int32_t interleaved; /* 0 or 1. yes: pairs are neighbours */
  int32_t conjugate; /* 0 or 1. yes: by the angle the other way round */
  const tilekiln_tensor* y; /* dtype of x (batch, seqlen, nheads, headdim). x turned */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
  const tilekiln_tensor* axes; /* int32; or null. (rotary_dim / 2): of each pair the axis whose position turns it; null: positions have one axis */
} tilekiln_rotary_args;

/* instance -1, others absent. Then set x, cos, sin and y. */
static inline tilekiln_rotary_args tilekiln_rotary_defaults(void) {
  TILEKILN_ZEROED(tilekiln_rotary_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_rotary(const tilekiln_rotary_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_rotary_find(const tilekiln_rotary_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_rotary_why(const tilekiln_rotary_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
