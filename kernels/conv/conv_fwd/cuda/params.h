// SPDX-License-Identifier: MIT
// Parameters of CUDA's convolutions, each the one argument of its kernels. Plain data. Spatial dimensions are x, y, z
// here: fastest first.
#pragma once

#include "kernels/backends/cuda/tensor_map.h"
#include "kernels/backends/cuda/tile/tile_grid.h"
#include "kernels/conv/engine.h"

namespace tilekiln::cuda::conv {

using matrix::i64;

// Bits of Output::features, uniform over a launch.
enum Feature : int {
  kWide = 1,          // outputs of a pixel that lie in y begin at 16 bytes, every eighth one
  kWideResidual = 2,  // the same of the residual
  kStaged = 4,  // neighbours along x lie together in y, in rows that begin anywhere: stores by way of shared memory
  kEven = 8,    // two of them are a word
};

// An array by pixels: steps along x, y, z and images, and from output to output, in elements. data null: none.
struct Pixels {
  char* data;
  i64 step[4], channel;
};

// Destination of sums: out = activation(sum + residual + bias[output]), of outputs that are `outputs` a group.
struct Output {
  Pixels y, residual;
  const float* bias;
  float clamp_min, clamp_max;
  int activation;  // matrix::Activation
  int out[4];      // lengths of y along x, y, z, and images
  int outputs, features;
};

// Products: tiles of 2^shift[0] x ... pixels by outputs of a group, kDepth channels of a tap a step. Of the map of x
// the dimensions are channels, x, y, z, images, or where `groups_apart` groups in place of z; of w's channels, outputs,
// taps, groups. Of planes x has pixels, channels and images, and a tile is kPlane pixels of an image, twice.
struct alignas(128) Params {
  TensorMap x, w;
  Output of;
  TileGrid grid;
  int shift[4], tiles[4];              // along x, y, z, and images
  int step[3], tap[3], begin[3];       // pixel o and tap t meet x at o step + t tap + begin
  int filter[3];                       // lengths
  int channels, chunks, groups_apart;  // of a group; steps of a tap
  int strips;                          // of kPlane pixels an image has
  int filters;  // outputs of a stage; the map of w has half as many where two CTAs may share them
};

// Sums of few channels a group: a thread has one output, or of depthwise filters kAcross pixels of one or two.
struct Direct {
  Output of;
  const char *x, *w;
  i64 x_step[4], x_channel, w_step[3], w_channel, w_output;  // of x along x, y, z, and images
  i64 all;                                                   // threads
  int step[3], tap[3], begin[3], filter[3], in[3];
  int channels, groups;
};
constexpr int kDirectThreads = 256, kAcross = 8;

// A copy of an array as TMA can follow it: (image, z, y, x, group, channel) without gaps, zeros where there is no
// pixel, or no channel.
struct Packed {
  const char* from;
  char* to;
  i64 step[4], channel;  // of `from`, along x, y, z, and images
  int in[3], before[3];  // lengths of it; zeros before them
  int out[3];            // lengths of the copy
  int channels, padded;  // of a group, there and in the copy
  int groups, pairs;     // pairs: every second pixel and the next one are a word of `from`
  unsigned pixels;       // of the copy
};
constexpr int kPackThreads = 256, kPackPixels = 64, kPackChannels = 64, kPackFew = 8;

constexpr int kTileRows = 128, kDepth = 64, kPlane = 64;
// Kernels of products, all with a CTA's shared memory. across: rows are outputs and columns pixels, of a y with pixels
// side by side. planes: of an x as well, which is read as it lies.
struct Form {
  const char* function;
  int columns, stages;
  bool across;
  int splits;  // of steps among CTAs of a cluster, at most; 1: none
  bool planes = false;
};
constexpr Form kForms[] = {{"conv_256", 256, 4, false, 1},
                           {"conv_128", 128, 6, false, 4},
                           {"conv_64", 64, 8, false, 2},
                           {"conv_across", 128, 6, true, 4},
                           {"conv_planes", 128, 6, true, 4, true}};

// Constants of a build that the host must know; the cubin holds one as `conv_build`.
struct Build { int threads, shared_bytes, fp16; };

}  // namespace tilekiln::cuda::conv
