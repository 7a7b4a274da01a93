// SPDX-License-Identifier: MIT
// Parameters of HIP's matrix products: the one argument of the kernel, and what one code object is made for. Plain
// data.
#pragma once

#include "kernels/gemm/gemm/extra.h"

namespace tilekiln::hip::gemm {

// Bits of Params::features, uniform over a launch.
enum Feature : int {
  kOutFp32 = 1,  // out and the extra matrices are fp32; else of the dtype of a
  kBiasOfRows = 2,
  kWideA = 4,  // lines of a, contiguous along k, begin at 16 bytes
  kWideB = 8,
  kAcrossA = 16,  // neighbouring rows of a lie together, not neighbours along k
  kAcrossB = 32,
};

using Extra = matrix::DeviceExtra;

// An operand. Element [batch b + line l + step s] is of row l of a or column l of b, and s along k.
struct Operand {
  const void* data;
  long long batch, line, step;
};

// out[i][j] = activation(alpha row_scale[i] column_scale[j] sum over k of a b + bias, then the extras), i < m, j < n.
struct Params {
  Operand a, b;
  void* out;
  long long out_row, out_batch;  // strides in elements; columns follow each other
  Extra extra[2];
  const float *bias, *row_scale, *column_scale;
  float alpha, clamp_min, clamp_max;
  int m, n, k;
  int tiles_m, tiles_n;  // of one product
  int activation;        // matrix::Activation
  int features;
};

// A product whose steps along k `workers` workgroups share: `steps` in all, a tile has tile_steps. parts: two for each
// worker, a tile's sums.
struct StreamParams {
  Params product;
  float* parts;
  int steps, tile_steps, workers;
};
constexpr int kStreamSteps = 32;  // numbers along k of a step

// Constants of a code object that the host must know; it holds one as `tilekiln_gemm_build`.
struct Build {
  int rows, columns;  // of a tile
  int threads;
  int bf16;  // else fp16
};

}  // namespace tilekiln::hip::gemm
