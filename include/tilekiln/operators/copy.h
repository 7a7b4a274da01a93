/* SPDX-License-Identifier: MIT */
/* copy.h - Made by `python -m codegen operators --write` from kernels/tensor/copy/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_COPY_H
#define TILEKILN_OPERATORS_COPY_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Copy: y = x, from any strides to any strides.
 *
 * x and y have up to 8 dimensions of any length. Elements are of 1, 2, 4 or 8 bytes and move bit for bit. Both arrays may have any
 * strides; of y no two elements may lie at one address, and it shares no memory with x. Rows that together are more than 16 MB
 * are written around the caches. */
typedef struct tilekiln_copy_args {
  size_t size; /* sizeof(tilekiln_copy_args): set by tilekiln_copy_defaults */
  const tilekiln_tensor* x; /* fp32, fp16, bf16, fp8, bf8, int8, int16, int32, int64, uint8, uint16, uint32, uint64, fp64 or bool. What is copied,
     (d0, d1, ..) */
  const tilekiln_tensor* y; /* dtype of x. The copy, in the shape of x */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_copy_args;

/* All fields absent, instance -1. Then set x and y. */
static inline tilekiln_copy_args tilekiln_copy_defaults(void) {
  TILEKILN_ZEROED(tilekiln_copy_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_copy(const tilekiln_copy_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_copy_find(const tilekiln_copy_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_copy_why(const tilekiln_copy_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
