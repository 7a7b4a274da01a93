/* SPDX-License-Identifier: MIT */
/* conv_fwd.h - Made by `python -m codegen operators --write` from kernels/conv/conv_fwd/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_CONV_FWD_H
#define TILEKILN_OPERATORS_CONV_FWD_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Convolution in groups: y[n, k, o] = activation(scale[k] (the sum over c, t of weight[k, c, t] x[n, c, o stride + t dilation - padding]) + residual
 * + bias[k]).
 *
 * x (batch, channels, spatial..), weight (outputs, channels / groups, filter..), y and residual (batch, outputs, spatial..), bias and scale
 * (outputs); one, two or three spatial dimensions, of y (length + padding before and after - dilation (filter - 1) - 1) / stride + 1,
 * rounded down. Outputs are as many for each group of channels; x is 0 in its padding.
 *
 * Arrays of more than two dimensions may have any strides. CK's NHWGC, PyTorch's channels_last, is such a view, (batch, height, width, groups,
 * channels) as
 * (batch, channels, height, width); it and NCHW are fast, and x, y and residual are fastest with the same layout. Batch and lengths of y may be 0.
 *
 * Sums are fp32, of int8 int32 modulo 2^32, in an order that the sizes and layouts say: bits do not depend on threads. They are rounded
 * once, after the activation. bf16 of ISAs with a bf16 product flushes subnormal numbers. int8 gives its sums, or with scale,
 * one factor an output, fp32, fp16 or bf16. NaN and infinity go to the outputs whose taps meet them, and to no others; an infinite x times
 * a weight of 0 is NaN, padding times an infinite weight too. gelu, gelu_tanh, silu and hardswish of -infinity are 0.
 * y may be residual itself, element for element; else it may not overlap any other array, nor itself.
 * On Hopper (sm_90a) there are kernels of fp16 and bf16: arrays whose channels do not lie together, from multiples of 16 bytes on, are copied first. */
typedef struct tilekiln_conv_fwd_args {
  size_t size; /* sizeof(tilekiln_conv_fwd_args): set by tilekiln_conv_fwd_defaults */
  const tilekiln_tensor* x; /* fp32, fp16, bf16 or int8 (batch, channels, width), d2: (batch, channels, height, width), d3: (batch, channels, depth,
     height, width). The images */
  const tilekiln_tensor* weight; /* dtype of x (outputs, group_channels, filter_width), d2: (outputs, group_channels, filter_height, filter_width),
     d3: (outputs, group_channels, filter_depth, filter_height, filter_width). The filters */
  tilekiln_dims stride; /* dimensions of x. Pixels from one output to the next, one number for each spatial dimension or one for all; none: 1 */
  tilekiln_dims dilation; /* dimensions of x. Pixels from one tap of a filter to the next, as stride */
  tilekiln_dims padding; /* dimensions of x. Zeros around x: one number for all, one for each spatial dimension, or those before each and then those
     after each; none: 0 */
  int32_t groups; /* of channels: each group of x has its own outputs */
  const tilekiln_tensor* y; /* dtype of x; of int8: int32, fp32, fp16 or bf16. The result */
  const tilekiln_tensor* bias; /* fp32 (outputs); or null. One number an output; not to int32 */
  const tilekiln_tensor* residual; /* dtype of y; or null. Added before the activation; not to int32 */
  const tilekiln_tensor* scale; /* fp32 (outputs); or null. One factor an output, before residual and bias; y, or out_dtype, is then fp32, fp16 or
     bf16 */
  int32_t activation; /* 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh), 4 (silu), 5 (sigmoid), 6 (hardswish) or 7 (clamp). gelu: by erf; gelu_tanh: by
     its approximation with tanh; clamp: to [clamp_min, clamp_max] */
  float clamp_min; /* the least that clamp leaves */
  float clamp_max; /* the most, at least clamp_min */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_conv_fwd_args;

/* stride and dilation 1, no padding, one group, activation none, clamp_min 0, clamp_max 6, instance -1. Then set x, weight, y and what else is
 * wanted. */
static inline tilekiln_conv_fwd_args tilekiln_conv_fwd_defaults(void) {
  TILEKILN_ZEROED(tilekiln_conv_fwd_args, args);
  args.groups = 1;
  args.clamp_max = 6.0f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_conv_fwd(const tilekiln_conv_fwd_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_conv_fwd_find(const tilekiln_conv_fwd_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_conv_fwd_why(const tilekiln_conv_fwd_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
