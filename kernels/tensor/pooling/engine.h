// SPDX-License-Identifier: MIT
// The border between the host side and the engines of pooling: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::tensor {

enum class Pool : int { max, mean };  // by value of the argument

constexpr int kSides = 3;  // depth, height, width; of images the depth is 1

// y[n][o][c] = the maximum or mean over t of x[n][o stride - padding + t dilation][c], of what lies inside. Steps are in elements: of
// image, sides and channel.
struct Pooling {
  const void* x;
  void* y;
  int* indices;  // null: none
  long long x_step[2 + kSides], y_step[2 + kSides], index_step[2 + kSides];
  long long images, channels, length[kSides], out[kSides];
  int window[kSides], stride[kSides], dilation[kSides], padding[kSides];
  int operation, dtype;  // Pool
  bool count_padding;    // zeros around x count in a mean
  bool along_channels;   // lanes
};

// rows[dtype] computes rows of outputs [first, last), of all (image, depth, height), and of all channels that lanes do not run along.
struct PoolingEngine { void (*rows[3])(const Pooling&, long long first, long long last); };

}  // namespace tilekiln::tensor
