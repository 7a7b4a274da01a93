/* SPDX-License-Identifier: MIT */
/* conv_bwd_weight.h - Made by `python -m codegen operators --write` from kernels/conv/conv_bwd_weight/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_CONV_BWD_WEIGHT_H
#define TILEKILN_OPERATORS_CONV_BWD_WEIGHT_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Gradient of the filters of a convolution: dweight[k, c, t] is the sum over n and o of dy[n, k, o] x[n, c, o stride + t dilation - padding].
 *
 * x (batch, channels, spatial..), dy (batch, outputs, spatial..), dweight (outputs, channels / groups, filter..), all as in conv_fwd, in any
 * strides. filter has the spatial lengths of dweight; without it they are the greatest that make dy's. dweight has the dtype of x, or is fp32.
 *
 * Sums are fp32, of parts of the pixels that the sizes say, then of the parts, rounded once: bits do not depend on threads. NaN and infinity go to
 * the filters that meet them. dweight may not overlap any other array, nor itself. */
typedef struct tilekiln_conv_bwd_weight_args {
  size_t size; /* sizeof(tilekiln_conv_bwd_weight_args): set by tilekiln_conv_bwd_weight_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (batch, channels, width), d2: (batch, channels, height, width), d3: (batch, channels, depth, height,
     width). The images */
  const tilekiln_tensor* dy; /* dtype of x (batch, outputs, width), d2: (batch, outputs, height, width), d3: (batch, outputs, depth, height, width).
     The gradient of y */
  tilekiln_dims stride; /* dimensions of x. Pixels from one output to the next, one number for each spatial dimension or one for all; none: 1 */
  tilekiln_dims dilation; /* dimensions of x. Pixels from one tap of a filter to the next, as stride */
  tilekiln_dims padding; /* dimensions of x. Zeros around x: one number for all, one for each spatial dimension, or those before each and then those
     after each; none: 0 */
  int32_t groups; /* of channels: each group of x has its own outputs */
  tilekiln_dims filter; /* dimensions of x. Spatial lengths of dweight; none: the greatest */
  const tilekiln_tensor* dweight; /* dtype of x; of fp16: fp16 or fp32; of bf16: bf16 or fp32. The gradient of weight */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_conv_bwd_weight_args;

/* stride and dilation 1, no padding, one group, instance -1. Then set x, dy, dweight and what else is wanted. */
static inline tilekiln_conv_bwd_weight_args tilekiln_conv_bwd_weight_defaults(void) {
  TILEKILN_ZEROED(tilekiln_conv_bwd_weight_args, args);
  args.groups = 1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_conv_bwd_weight(const tilekiln_conv_bwd_weight_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_conv_bwd_weight_find(const tilekiln_conv_bwd_weight_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_conv_bwd_weight_why(const tilekiln_conv_bwd_weight_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
