// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of convolutions: plain data, no ISA, no std header, no inline function.
//
// The host side turns all three operators into sums over taps: the gradient of x is some convolutions of dy, one for each place of a
// pixel in its stride.
#pragma once

#include "kernels/gemm/engine.h"

namespace tilekiln::conv {

using matrix::i64;
using matrix::u64;

// Steps of an array (batch, channels, depth, height, width), in elements.
struct Steps { i64 batch, channel, at[3]; };

// Words of a weight that are multiplied at once, by which it is gathered and packed: `outer` of the outer of its two dimensions, channels
// and taps, and `inner` of the other one. One of both is a whole dimension, or `outer` is 1.
struct Chunk { i64 outer, inner; };

// y[n, g, k, o] = activation(scale[k] sum over c, t of w[g, k, c, t] x[n, g, c, o step + t tap + start] + residual + bias[k]); x is 0 outside of
// [0, in). Outputs and channels are those of a group.
struct Convolution {
  static constexpr bool launches_kernels = false;
  matrix::Dtype dtype;
  matrix::OutDtype out_dtype;
  matrix::Activation activation;
  bool lanes_along_pixels;          // else along outputs
  bool packed;                      // its weight, by `pack`: a matrix of rows lies as it is
  bool turned;                      // a matrix that lies has words as rows
  bool channels_inner;              // of a weight as rows of words: channels run faster than taps
  bool taps_lie;                    // the taps of a filter's channel follow each other
  bool filters_lie, filters_inner;  // filters are rows of words; their channels run faster than their taps
  const char *x, *w;
  char* y;
  const char* residual;       // null: without
  const float *bias, *scale;  // null: without
  const char* rows;           // w of lanes_along_pixels, rows of words, or panels of all chunks of all groups
  Steps x_step, w_step, y_step, residual_step;  // w_step.batch: from output to output
  i64 w_group, rows_group;                      // from group to group
  i64 rows_step;                                // elements of a row of words
  float clamp_min, clamp_max;
  i64 batch, groups, channels, outputs;
  i64 in[3], out[3], filter[3], step[3], tap[3], start[3];
  Chunk chunk;
  i64 chunks;
  i64 wide;         // of tiles of the processor that read x as it lies in rows of so many pixels; 0: taps are gathered
  i64 tile, tiles;  // pixels, of all images, that are gathered at once; of depthwise ones rows of out
  i64 some, parts;  // outputs of a unit; of depthwise ones columns of out
  u64 gathered, made;  // bytes of scratch: of what is gathered, of results
};

// A convolution of conv_fwd, for which GPUs have kernels; those of gradients are CPUs'.
struct ForwardConvolution : Convolution { static constexpr bool launches_kernels = true; };

// The gradient of a weight by that of y: dw[k, c, t] is the sum over pixels of y[n, k, o] x[n, c, o step + t tap + start]. of.y is read, of.w_step is
// that of dw. Parts of the pixels are summed apart, to sums[part][group][output][word].
struct WeightGradient {
  Convolution of;
  char* dw;
  matrix::OutDtype dtype;
  float* sums;
  i64 parts, some;  // of pixels: tiles of a part
};

// The engine of one target. Functions compute a unit, by its number; scratch as matrix::Engine's, with room for what is gathered and made.
struct Engine {
  void (*forward)(const Convolution&, i64 unit, void* scratch);
  void (*pack)(const Convolution&, i64 unit, void* to);             // of packed weights: rows or panels
  void (*weights)(const WeightGradient&, i64 unit, void* scratch);  // a part, group and chunk of words
  void (*add)(const WeightGradient&, i64 unit);                     // dw of an output, of all parts
  u64 scratch_bytes;                                                // beside what is gathered and made
  int lanes;   // outputs of a unit, of an engine of depthwise convolutions; else 0
  bool tiles;  // products are by tiles of the processor, which read rows in whole lines
};

}  // namespace tilekiln::conv
