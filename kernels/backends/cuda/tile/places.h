// SPDX-License-Identifier: MIT
// Places of 16-byte pieces in arrays of shared memory, such that eight rows of a matrix lie in different banks.
//
// Invariants: an array begins at a multiple of 1,024 bytes where TMA or wgmma share it, else of 128. Pieces of a row
// stay in it; rows of 64 bytes take turns as pairs of 128.
#pragma once

#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda {

// Offset in bytes of a piece in rows of 128 bytes, as TMA and wgmma swizzle them by 128 bytes.
TILEKILN_DEVICE constexpr uint32_t swizzle128(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// Offset in bytes of a piece in rows of kPieces of them, for ldmatrix alone. `order`: the row's place among those that
// an instruction takes together, where they are not neighbours.
template <int kPieces> TILEKILN_DEVICE constexpr uint32_t place_of_piece(int row, int piece, int order) {
  return row * (kPieces * 16) + ((piece ^ (kPieces < 8 ? order >> 1 & 3 : order & 7)) << 4);
}
template <int kPieces> TILEKILN_DEVICE constexpr uint32_t place_of_piece(int row, int piece) {
  return place_of_piece<kPieces>(row, piece, row);
}

}  // namespace tilekiln::cuda
