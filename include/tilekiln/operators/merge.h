/* SPDX-License-Identifier: MIT */
/* merge.h - Made by `python -m codegen operators --write` from kernels/norm/merge/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_MERGE_H
#define TILEKILN_OPERATORS_MERGE_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Attention over all keys from attention over two parts of them: cascades, such as a prefix that sequences share.
 *
 * out_a, out_b, out (rows, columns), lse_a, lse_b, lse (rows), fp32 natural logs: lse = log(exp(lse_a) + exp(lse_b)),
 * out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b, in fp32, rounded once. A row is a query of a head.
 *
 * A part whose lse is -inf saw no key of the row: its out is not read. Where both are, out is 0 and lse -inf. An lse of NaN or +inf makes
 * NaN of its row. Rows may have any stride, the last dimension is contiguous. out may be out_a, the same memory with the same strides;
 * otherwise results share memory with nothing. */
typedef struct tilekiln_merge_args {
  size_t size; /* sizeof(tilekiln_merge_args): set by tilekiln_merge_defaults */
  const tilekiln_tensor* out_a; /* fp32, fp16 or bf16 (rows, columns). Of attention over the first part */
  const tilekiln_tensor* lse_a; /* fp32 (rows). Natural log of the sum of its exponentials */
  const tilekiln_tensor* out_b; /* dtype of out_a (rows, columns). Of attention over the second part */
  const tilekiln_tensor* lse_b; /* fp32 (rows). Natural log of the sum of its exponentials */
  const tilekiln_tensor* out; /* dtype of out_a (rows, columns). Of attention over both */
  const tilekiln_tensor* lse; /* fp32 (rows); or null. Natural log of the sum of exponentials over both */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_merge_args;

/* instance -1. Then set out_a, lse_a, out_b, lse_b, out and lse. */
static inline tilekiln_merge_args tilekiln_merge_defaults(void) {
  TILEKILN_ZEROED(tilekiln_merge_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_merge(const tilekiln_merge_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_merge_find(const tilekiln_merge_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_merge_why(const tilekiln_merge_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
