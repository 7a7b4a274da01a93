/* SPDX-License-Identifier: MIT */
/* pooling_bwd.h - Made by `python -m codegen operators --write` from kernels/tensor/pooling_bwd/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_POOLING_BWD_H
#define TILEKILN_OPERATORS_POOLING_BWD_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Gradient of pooling: dx, of dy, the gradient of y.
 *
 * Windows are those of pooling, of which x, layout and what follows are the arguments; of x the shape alone is read. dx has the shape of
 * x. Of maxima the indices that pooling made are needed: each window's gradient goes to its one place, that of -1 nowhere. Of means each
 * element of a window has the gradient over what the mean divides by.
 *
 * Sums are fp32 in one order, rounded once: the same bits for any number of threads. Arrays have any strides; of dx no two elements lie at
 * one address, and it shares no memory with another array. */
typedef struct tilekiln_pooling_bwd_args {
  size_t size; /* sizeof(tilekiln_pooling_bwd_args): set by tilekiln_pooling_bwd_defaults */
  const tilekiln_tensor* dy; /* fp32, fp16 or bf16 (batch, windows_1, windows_2, windows_3), volumes: (batch, windows_1, windows_2, windows_3,
     windows_4). The gradient of y */
  const tilekiln_tensor* x; /* dtype of dy (batch, length_1, length_2, length_3), volumes: (batch, length_1, length_2, length_3, length_4). The images
     or volumes, of which the shape alone is read */
  tilekiln_dims window; /* one number, or depth, height, width. The size of a window */
  int32_t operation; /* 0 (max) or 1 (mean). What is made of the elements */
  tilekiln_dims stride; /* one number, or depth, height, width. Elements from one window to the next; none: those of the window */
  tilekiln_dims dilation; /* one number, or depth, height, width. Elements from one of a window to the next; none: 1 */
  tilekiln_dims padding; /* one number, or depth, height, width. Windows begin so far before x and end so far after it, at most half of a window;
     none: 0 */
  int32_t ceil_mode; /* 0 or 1. yes: windows of which a part is past x and its padding */
  int32_t count_padding; /* 0 or 1. yes: padding counts in a mean */
  int32_t layout; /* 0 (nhwc) or 1 (nchw). Whether channels come last or after the batch */
  const tilekiln_tensor* indices; /* int32 (batch, windows_1, windows_2, windows_3), volumes: (batch, windows_1, windows_2, windows_3, windows_4); or
     null. Places of the maxima as pooling made them */
  const tilekiln_tensor* dx; /* dtype of x (batch, length_1, length_2, length_3), volumes: (batch, length_1, length_2, length_3, length_4). The
     gradient of x */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_pooling_bwd_args;

/* operation max, layout nhwc, count_padding 1, instance -1. Then set dy, x and window, and of maxima indices. */
static inline tilekiln_pooling_bwd_args tilekiln_pooling_bwd_defaults(void) {
  TILEKILN_ZEROED(tilekiln_pooling_bwd_args, args);
  args.count_padding = 1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_pooling_bwd(const tilekiln_pooling_bwd_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_pooling_bwd_find(const tilekiln_pooling_bwd_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_pooling_bwd_why(const tilekiln_pooling_bwd_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
