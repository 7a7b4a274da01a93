/* SPDX-License-Identifier: MIT */
/* batched_transpose.h - Made by `python -m codegen operators --write` from kernels/tensor/batched_transpose/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_BATCHED_TRANSPOSE_H
#define TILEKILN_OPERATORS_BATCHED_TRANSPOSE_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Transposes of a batch: y[b, j, i] = x[b, i, j]; of images, channels first to channels last or back.
 *
 * x (batch, rows, columns), y (batch, columns, rows); or x of four dimensions, images. With layout nchw x is (batch, channels, height,
 * width) and y (batch, height, width, channels); with nhwc x is (batch, height, width, channels) and y (batch, channels, height, width).
 * Elements are of 1, 2, 4 or 8 bytes and move bit for bit. Both arrays may have any strides; of y no two elements may lie at one
 * address, and it shares no memory with x. */
typedef struct tilekiln_batched_transpose_args {
  size_t size; /* sizeof(tilekiln_batched_transpose_args): set by tilekiln_batched_transpose_defaults */
  const tilekiln_tensor* x; /* fp32, fp16, bf16, fp8, bf8, int8, int16, int32, int64, uint8, uint16, uint32, uint64, fp64 or bool. (batch, rows,
     columns), or images of four dimensions */
  int32_t layout; /* 0 (nchw) or 1 (nhwc). How images lie in x; in y they lie the other way */
  const tilekiln_tensor* y; /* dtype of x. What was last of x before what came after the batch */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_batched_transpose_args;

/* All fields absent, layout nchw, instance -1. Then set x and y, and layout for images. */
static inline tilekiln_batched_transpose_args tilekiln_batched_transpose_defaults(void) {
  TILEKILN_ZEROED(tilekiln_batched_transpose_args, args);
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_batched_transpose(const tilekiln_batched_transpose_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_batched_transpose_find(const tilekiln_batched_transpose_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_batched_transpose_why(const tilekiln_batched_transpose_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
