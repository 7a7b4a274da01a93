/* SPDX-License-Identifier: MIT */
/* group_norm.h - Made by `python -m codegen operators --write` from kernels/norm/group_norm/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_GROUP_NORM_H
#define TILEKILN_OPERATORS_GROUP_NORM_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Group normalisation (Wu and He, 2018): y = act((x - mean) / sqrt(variance + epsilon) gamma + beta), mean and variance of each group of channels of
 * an image.
 *
 * x, y (batch, channels, positions), with layout nhwc (batch, positions, channels); positions are pixels in any number of dimensions.
 * gamma, beta (channels), null: 1 and 0; mean, inv_std (batch, groups). Group g has the channels from g channels / groups on. The variance
 * is divided by the number of a group's elements, and is of deviations from the mean. Products are fp32, sums fp32 over some thousand
 * elements and then fp64, in one order whatever the threads; y is rounded once, after the activation. A group that holds a NaN or an
 * infinity is NaN; where squares of deviations leave fp32, elements are act(beta) or NaN.
 *
 * All but the last dimension of x and y may have any stride. y may be x: the same memory with the same strides; otherwise results share
 * memory with nothing. */
typedef struct tilekiln_group_norm_args {
  size_t size; /* sizeof(tilekiln_group_norm_args): set by tilekiln_group_norm_defaults */
  const tilekiln_tensor* x; /* fp32, fp16 or bf16 (batch, channels, spatial). What is normalised */
  const tilekiln_tensor* gamma; /* dtype of x (channels); or null. One factor a channel; null: 1 */
  const tilekiln_tensor* beta; /* dtype of x (channels); or null. Added before the activation, one number a channel; null: 0 */
  const tilekiln_tensor* y; /* dtype of x (batch, channels, spatial). The normalised images */
  const tilekiln_tensor* mean; /* fp32; or null. (batch, groups) */
  const tilekiln_tensor* inv_std; /* fp32; or null. (batch, groups): 1 / sqrt(variance + epsilon) */
  int32_t groups; /* of channels; they divide them */
  float epsilon; /* added to the variance */
  int32_t activation; /* 0 (none) or 1 (silu). Function of the normalised elements */
  int32_t layout; /* 0 (nchw) or 1 (nhwc). nhwc: channels are the last dimension */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_group_norm_args;

/* groups 32, epsilon 1e-5, instance -1. Then set x, y and what else is wanted. */
static inline tilekiln_group_norm_args tilekiln_group_norm_defaults(void) {
  TILEKILN_ZEROED(tilekiln_group_norm_args, args);
  args.groups = 32;
  args.epsilon = 1e-05f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_group_norm(const tilekiln_group_norm_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_group_norm_find(const tilekiln_group_norm_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_group_norm_why(const tilekiln_group_norm_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
