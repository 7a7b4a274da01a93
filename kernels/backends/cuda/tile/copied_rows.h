// A producer warpgroup that copies rows one by one (cp.async), which TMA does not gather: a stage that it has begun
// lands kLag stages later.
//
// Invariants: all 128 threads call, with the same stages in the same order; thread 0 alone expects bytes of TMA, before
// its copies. A stage has 1 + 4 arrivals: thread 0's and the warps'. Tiles are of Major::K; eight threads copy the 128
// bytes of a row.
#pragma once

#include "kernels/backends/cuda/tile/pipeline.h"
#include "kernels/backends/cuda/tile/shared_tile.h"

namespace tilekiln::cuda {

template <class Pipe> struct CopiedRows {
  static constexpr int kLag = 2, kArrivals = 1 + 4;
  static_assert(Pipe::kStages > kLag, "a stage must land before the ring comes round to it");
  Producer<Pipe> begun, landed;
  int thread, flying = 0;
  __device__ __forceinline__ CopiedRows(Pipe& pipe, int thread) : begun(pipe), landed(pipe), thread(thread) {}

  __device__ __forceinline__ void land() {
    landed.commit_stores(thread & 31);
    landed.advance();
  }
  // Zeros in a tile of every stage, before the first copy: rows that are not copied hold what was there.
  template <class TileOf> __device__ __forceinline__ void clear(TileOf&& tile_of) const {
    const uint32_t zeros[4] = {};
    for (int i = 0; i < Pipe::kStages; ++i) {
      auto& tile = tile_of(begun.pipe.stage[i]);
      for (int piece = thread; piece < tile.kBytes / 16; piece += 128) tile.store(piece / 8, piece % 8, zeros);
    }
  }
  // The 128 bytes of 16 rows at a time: from(i) + `offset` for row thread / 8 + 16 i, null: none. Of them `left` are
  // there, and zeros.
  template <class Tile, class From> __device__ __forceinline__ void copy(Tile& tile, int64_t offset, int64_t left,
                                                                         From&& from) {
    const int chunk = thread & 7;
    const int bytes = int(max(int64_t(0), min(int64_t(16), left - 16 * chunk)));
#pragma unroll
    for (int i = 0; i < Tile::kLines / 16; ++i) {
      const char* const row = from(i);
      if (row != nullptr) tile.copy(thread / 8 + 16 * i, chunk, bytes > 0 ? row + offset + 16 * chunk : row, bytes);
    }
    copy_async_commit();
    if (flying == kLag)
      copy_async_wait<kLag>(), land();
    else
      ++flying;
    begun.advance();
  }
  __device__ __forceinline__ void finish() {
    copy_async_wait<0>();
    for (; flying > 0; --flying) land();
  }
};

}  // namespace tilekiln::cuda
