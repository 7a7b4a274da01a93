/* SPDX-License-Identifier: MIT */
/* img2col.h - Made by `python -m codegen operators --write` from kernels/tensor/img2col/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_IMG2COL_H
#define TILEKILN_OPERATORS_IMG2COL_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Image to column: y[g, (n, i, j), (a, b, c)] = x[n, i stride + a dilation - padding, j .., c of group g], 0 outside of x.
 *
 * x (batch, height, width, channels), y (groups, batch * out_height * out_width, filter_height * filter_width * channels / groups) with
 * out_height = (height + 2 padding - dilation (filter_height - 1) - 1) / stride + 1, rounded down, and so the width. The columns of a
 * row of y are those of its patch, y, x, c: channels run fastest. Each group's matrix times (columns, outputs) is its convolution.
 * Pairs are (along the height, along the width); torch.nn.functional.unfold has the columns c, y, x.
 * Elements are of 1, 2, 4 or 8 bytes and move bit for bit; what padding adds is 0. The last dimension of both is contiguous; y shares no
 * memory with x. */
typedef struct tilekiln_img2col_args {
  size_t size; /* sizeof(tilekiln_img2col_args): set by tilekiln_img2col_defaults */
  const tilekiln_tensor* x; /* fp32, fp16, bf16, fp8, bf8, int8, int16, int32, int64, uint8, uint16, uint32, uint64, fp64 or bool (batch, height,
     width, channels). The images */
  int32_t filter_height, filter_width; /* what a patch has along each side */
  int32_t stride_height, stride_width; /* pixels from one patch to the next */
  int32_t dilation_height, dilation_width; /* pixels from one element of a patch to the next */
  int32_t padding_height, padding_width; /* zeros on either side */
  int32_t groups; /* of channels; each is a matrix of its own */
  const tilekiln_tensor* y; /* dtype of x. a row for each patch */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_img2col_args;

/* filter, stride and dilation 1, no padding, one group, instance -1. Then set x and y. */
static inline tilekiln_img2col_args tilekiln_img2col_defaults(void) {
  TILEKILN_ZEROED(tilekiln_img2col_args, args);
  args.filter_height = 1;
  args.filter_width = 1;
  args.stride_height = 1;
  args.stride_width = 1;
  args.dilation_height = 1;
  args.dilation_width = 1;
  args.groups = 1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_img2col(const tilekiln_img2col_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_img2col_find(const tilekiln_img2col_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_img2col_why(const tilekiln_img2col_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
