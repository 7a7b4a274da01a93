/* SPDX-License-Identifier: MIT */
/* pooling.h - Made by `python -m codegen operators --write` from kernels/tensor/pooling/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_POOLING_H
#define TILEKILN_OPERATORS_POOLING_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Pooling: y = the maximum or the mean of x in windows of images or volumes.
 *
 * x (batch, height, width, channels) or (batch, depth, height, width, channels); with layout nchw channels come after the batch. y has the
 * same layout, and along each side (length + 2 padding - dilation (window - 1) - 1) / stride + 1 windows, rounded down; with ceil_mode up,
 * as long as a window begins inside x or the padding before it. window, stride, dilation and padding are a number for all sides, or one for
 * each; no stride is that of the window, no dilation 1, no padding 0.
 *
 * A maximum is of what lies inside x, and -inf where nothing does; a NaN makes it NaN. Its index, int32, is (z height + y) width + x of the
 * first of equal ones, of the last NaN, and -1 of nothing. A mean is in fp32, rounded once; it divides by the size of the window, without
 * the part past the padding that ceil_mode adds, or, without count_padding, by how many elements lie inside: 0 / 0 of none.
 *
 * Arrays have any strides; of y and indices no two elements lie at one address, and they share no memory with another array. */
typedef struct tilekiln_pooling_args {
  size_t size; /* sizeof(tilekiln_pooling_args): set by tilekiln_pooling_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (batch, length_1, length_2, length_3), volumes: (batch, length_1, length_2, length_3, length_4). The
     images or volumes */
  tilekiln_dims window; /* one number, or depth, height, width. The size of a window */
  int32_t operation; /* 0 (max) or 1 (mean). What is made of the elements */
  tilekiln_dims stride; /* one number, or depth, height, width. Elements from one window to the next; none: those of the window */
  tilekiln_dims dilation; /* one number, or depth, height, width. Elements from one of a window to the next; none: 1 */
  tilekiln_dims padding; /* one number, or depth, height, width. Windows begin so far before x and end so far after it, at most half of a window;
     none: 0 */
  int32_t ceil_mode; /* 0 or 1. yes: windows of which a part is past x and its padding */
  int32_t count_padding; /* 0 or 1. yes: padding counts in a mean */
  int32_t layout; /* 0 (nhwc) or 1 (nchw). Whether channels come last or after the batch */
  const tilekiln_tensor* y; /* dtype of x. The maxima or means */
  const tilekiln_tensor* indices; /* int32; or null. Places of the maxima in their images */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_pooling_args;

/* operation max, layout nhwc, count_padding 1, instance -1. Then set x, y and window. */
static inline tilekiln_pooling_args tilekiln_pooling_defaults(void) {
  TILEKILN_ZEROED(tilekiln_pooling_args, args);
  args.count_padding = 1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_pooling(const tilekiln_pooling_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_pooling_find(const tilekiln_pooling_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_pooling_why(const tilekiln_pooling_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
