// SPDX-License-Identifier: MIT
// Parameters of CUDA's moves: the one argument of their kernels, and what the build is made for.
#pragma once

#include "kernels/tensor/engine.h"

namespace tilekiln::cuda::move {

// Strides and lengths of copied rows along columns count vectors of `bytes`, not elements.
struct Params {
  tensor::Move move;
  int bytes;           // of what is moved at once: a vector of a row, or an element
  int lanes;           // of copied rows: threads that share a row, a power of two
  int wide_x, wide_y;  // of tiles: lines of x, of y begin at 16 bytes
  long long tiles_r, tiles_c;
};

// Constants of a build that the host must know; the cubin holds one as `move_build`.
struct Build { int threads; };

}  // namespace tilekiln::cuda::move
