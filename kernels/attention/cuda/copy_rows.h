// SPDX-License-Identifier: MIT
// Rows of a tile from global to shared memory, 16 bytes a thread at a time, by cp.async.
#pragma once

#include "kernels/backends/cuda/mma.h"
#include "kernels/backends/cuda/tile/places.h"

namespace tilekiln::cuda {

// The offset of piece `piece` of 8 elements of row `row` in a tile of rows of kHdim elements, in bytes.
template <int kHdim> TILEKILN_DEVICE uint32_t place(int row, int piece) {
  return place_of_piece<kHdim / 8>(row, piece);
}

// The pieces of a tile that this thread, one of kThreads, copies: f(row, piece) of each.
template <int kHdim, int kRows, int kThreads, int kUnroll, class Function>
TILEKILN_DEVICE void each_piece(Function&& f) {
  constexpr int kPieces = kHdim / 8, kCount = kRows * kPieces / kThreads;
  constexpr bool kColumns = kThreads % kPieces == 0;  // a thread has one column of pieces
  static_assert(kRows * kPieces % kThreads == 0, "every thread has as many pieces");
#pragma unroll kUnroll
  for (int i = 0; i < kCount; ++i) {
    const int at = threadIdx.x + (kColumns ? 0 : i * kThreads);
    f(at / kPieces + (kColumns ? i * (kThreads / kPieces) : 0), at % kPieces);
  }
}

// The rows of a tile that exist: [begin, end), and those below `sinks`. The others are zeros, and so are columns from
// `hdim` on.
struct Rows { int begin, end, sinks; };

// Rows of `row_step` elements from `data` on.
template <int kHdim, int kRows, int kThreads>
TILEKILN_DEVICE void load_rows(uint32_t to, const uint16_t* data, int64_t row_step, int hdim, const Rows& rows) {
  if (rows.begin <= 0 && rows.end >= kRows) {
    each_piece<kHdim, kRows, kThreads, kRows>([&](int row, int piece) {
      copy_async(to + place<kHdim>(row, piece), data + row * row_step + piece * 8, piece * 8 < hdim);
    });
  } else {
    each_piece<kHdim, kRows, kThreads, 4>([&](int row, int piece) {
      const bool inside = row < rows.end && (row >= rows.begin || row < rows.sinks) && piece * 8 < hdim;
      copy_async(to + place<kHdim>(row, piece), inside ? data + row * row_step + piece * 8 : data, inside);
    });
  }
}

// Views the four accumulators of one product.
TILEKILN_DEVICE float (&block(float* sums, int at))[4] { return *reinterpret_cast<float (*)[4]>(sums + 4 * at); }

}  // namespace tilekiln::cuda
