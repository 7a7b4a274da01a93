// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of group_norm: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::norm {

constexpr int kGroupsTogether = 64;  // most groups of a unit

// One call, after every check. Strides are in elements: of images, and of channels, or positions where channels are last, whose
// elements are contiguous. What is absent is null.
struct GroupNorm {
  static constexpr bool launches_kernels = true;
  const void *x, *gamma, *beta;
  void* y;                // may be x
  float *mean, *inverse;  // (images, groups), rows statistics_row apart
  long long x_image, x_row, y_image, y_row, mean_image, inverse_image;
  long long images, positions;
  int channels, groups, dtype;  // dtype by value of the axis
  bool channels_last, silu;
  float epsilon;
  // Units of work: of each image `units`, of `together` groups each, the last of those that are left.
  long long rows;
  int units, together;
};

// rows[dtype] computes the units [first, last).
struct GroupNormEngine { void (*rows[3])(const GroupNorm&, long long first, long long last); };

}  // namespace tilekiln::norm
