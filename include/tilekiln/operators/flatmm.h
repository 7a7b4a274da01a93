/* SPDX-License-Identifier: MIT */
/* flatmm.h - Made by `python -m codegen operators --write` from kernels/gemm/flatmm/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_FLATMM_H
#define TILEKILN_OPERATORS_FLATMM_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Matrix product with a packed b: out = activation(alpha a b + beta c + bias).
 *
 * a (m, k), c and out (m, panels, 64), bias (panels, 64); b (panels, words, 64, word elements): b[p, w, j, e] is element
 * (w word elements + e, 64 p + j) of the (k, n) matrix, and 0 past its ends; word elements is 2 for bf16 and 1 for fp16 and fp32, panels
 * is n / 64 and words k / word elements, both rounded up. b is contiguous, and so are rows of c and out, which are rows of (m, n) with
 * columns past n. One of the strides of a is 1, the other is anything. Any length may be 0; with alpha = 0 the product is 0 and a and b are not
 * read; with beta = 0 c is not read. In Python `tilekiln.PackedWeight` packs and unpacks, and `tilekiln.linear` takes it.
 *
 * Sums are fp32, in one order: the result has the same bits for any number of threads. It is rounded once, after the activation.
 * Special values as in gemm. out may be c itself, element for element; else it may not overlap any other array, nor itself.
 * The structs a pointer here names are read before the call returns; the data of the arrays must stay until the stream has run the call. */
typedef struct tilekiln_flatmm_args {
  size_t size; /* sizeof(tilekiln_flatmm_args): set by tilekiln_flatmm_defaults */
  const tilekiln_tensor* a; /* fp32, fp16 or bf16 (m, k). The left matrix */
  const tilekiln_tensor* b; /* dtype of a (panels, words, lanes, word elements). The packed right matrix */
  const tilekiln_tensor* out; /* dtype of a (m, panels, lanes). The result */
  const tilekiln_tensor* bias; /* fp32 (panels, lanes); or null. One number a column */
  float alpha; /* what the product is multiplied by */
  int32_t activation; /* 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh), 4 (silu), 5 (sigmoid), 6 (hardswish) or 7 (clamp). gelu: by erf; gelu_tanh: by
     its approximation with tanh; clamp: to [clamp_min, clamp_max] */
  float clamp_min; /* the least that clamp leaves */
  float clamp_max; /* the most, at least clamp_min */
  const tilekiln_tensor* c; /* dtype of out (m, panels, lanes); or null. added, beta times */
  float beta; /* what c is multiplied by */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_flatmm_args;

/* All fields absent, clamp_min 0, clamp_max 6, alpha and beta 1, instance -1. Then set a, b, out and what else is wanted. */
static inline tilekiln_flatmm_args tilekiln_flatmm_defaults(void) {
  TILEKILN_ZEROED(tilekiln_flatmm_args, args);
  args.alpha = 1.0f;
  args.clamp_max = 6.0f;
  args.beta = 1.0f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_flatmm(const tilekiln_flatmm_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_flatmm_find(const tilekiln_flatmm_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_flatmm_why(const tilekiln_flatmm_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
