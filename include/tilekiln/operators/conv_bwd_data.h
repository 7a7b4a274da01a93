/* SPDX-License-Identifier: MIT */
/* conv_bwd_data.h - Made by `python -m codegen operators --write` from kernels/conv/conv_bwd_data/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_CONV_BWD_DATA_H
#define TILEKILN_OPERATORS_CONV_BWD_DATA_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Gradient of the images of a convolution: dx[n, c, i] is the sum of weight[k, c, t] dy[n, k, o] over k, t and o with o stride + t dilation - padding
 * = i.
 *
 * dy (batch, outputs, spatial..), weight (outputs, channels / groups, filter..), dx (batch, channels, spatial..), all as in conv_fwd, in any
 * strides. lengths has the spatial lengths of dx; without it they are the least that make dy's: (length - 1) stride + dilation (filter - 1) + 1 -
 * padding.
 * Pixels of dx that no output meets are 0. It is also the transposed convolution of dy, whose output padding is in lengths.
 *
 * Sums are fp32, rounded once; their order is that of the sizes and layouts, whatever the threads. NaN and infinity go to the pixels whose
 * outputs have them. dx may not overlap any other array, nor itself. */
typedef struct tilekiln_conv_bwd_data_args {
  size_t size; /* sizeof(tilekiln_conv_bwd_data_args): set by tilekiln_conv_bwd_data_defaults */
  const tilekiln_tensor* dy; /* fp32, fp16 or bf16 (batch, outputs, width), d2: (batch, outputs, height, width), d3: (batch, outputs, depth, height,
     width). The gradient of y */
  const tilekiln_tensor* weight; /* dtype of dy (outputs, group_channels, filter_width), d2: (outputs, group_channels, filter_height, filter_width),
     d3: (outputs, group_channels, filter_depth, filter_height, filter_width). The filters */
  tilekiln_dims stride; /* dimensions of x. Pixels from one output to the next, one number for each spatial dimension or one for all; none: 1 */
  tilekiln_dims dilation; /* dimensions of x. Pixels from one tap of a filter to the next, as stride */
  tilekiln_dims padding; /* dimensions of x. Zeros around x: one number for all, one for each spatial dimension, or those before each and then those
     after each; none: 0 */
  int32_t groups; /* of channels: each group of x has its own outputs */
  tilekiln_dims lengths; /* dimensions of dy. Spatial lengths of dx; none: the least */
  const tilekiln_tensor* dx; /* dtype of dy. The gradient of x */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_conv_bwd_data_args;

/* stride and dilation 1, no padding, one group, instance -1. Then set dy, weight, dx and what else is wanted. */
static inline tilekiln_conv_bwd_data_args tilekiln_conv_bwd_data_defaults(void) {
  TILEKILN_ZEROED(tilekiln_conv_bwd_data_args, args);
  args.groups = 1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_conv_bwd_data(const tilekiln_conv_bwd_data_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_conv_bwd_data_find(const tilekiln_conv_bwd_data_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_conv_bwd_data_why(const tilekiln_conv_bwd_data_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
