// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engine of img2col: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::tensor {

// y[g][(n, i, j)][(a, b, c)] = x[n][i stride - padding + a dilation][j ..][g channels + c], 0 outside of x. Steps are in bytes.
struct Img2col {
  static constexpr bool launches_kernels = true;
  const char* x;
  char* y;
  long long x_image, x_row, x_pixel, y_group, y_row;
  int height, width, out_height, out_width, filter_height, filter_width, groups;
  int stride[2], dilation[2], padding[2];
  int bytes;  // of the channels of a group
  long long patches;
};

// patches computes rows [first, last) of y, of all groups.
struct Img2colEngine { void (*patches)(const Img2col&, long long first, long long last); };

}  // namespace tilekiln::tensor
