// SPDX-License-Identifier: MIT
// Parameters of HIP's moves: the one argument of their kernels, and what the code object is made for.
#pragma once

#include "kernels/tensor/engine.h"

namespace tilekiln::hip::move {

// Strides and lengths of copied rows along columns count vectors of `bytes`, not elements.
struct Params {
  tensor::Move move;
  int bytes;  // of what is moved at once: a vector of a row, or an element
  int lanes;  // of copied rows: threads that share a row, a power of two
  int blocks;
  long long tiles_r, tiles_c;
};

constexpr int kSide = 64;  // elements of a tile that is turned

// Constants of a code object that the host must know; it holds one as `tilekiln_move_build`.
struct Build { int threads; };

}  // namespace tilekiln::hip::move
