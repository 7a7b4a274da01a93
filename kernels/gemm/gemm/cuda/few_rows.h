// SPDX-License-Identifier: MIT
// A product of up to kFewRows rows with b contiguous along k: bound by the reading of b, the weight of a linear layer.
//
// A CTA has tiles of eight columns of out, its warps share k in chunks of 64. Each warp reads its chunks ahead into a ring of its own
// (cp.async) and meets the others once every kFewTiles tiles, to add their sums in one order. In mma.m16n8k16 the rows of a are the 16 and
// the columns of b the 8; elements along k are taken in the order in which 16 bytes hold them, of both alike.
// What a launch reads of b first is on its way while the launch before it ends: to L2 alone, as that one may write b, unless it is said not to.
#pragma once

#include "kernels/backends/cuda/mma.h"
#include "kernels/gemm/gemm/cuda/epilogue.h"

namespace tilekiln::cuda::gemm {

struct FewRows {
  static constexpr int kWarps = kFewWarps, kStages = kFewStages, kDepth = kFewDepth, kTile = kFewColumns;
  static constexpr int kRowBytes = kDepth * 2, kStageBytes = kTile * kRowBytes;
  static constexpr int kAhead = 16;  // chunks of a warp that L2 is asked for
  using Sums = float[2][kFewTiles][kWarps][kFewRows * kTile];

  const Params& p;
  int warp, lane, chunks, mine, tiles;  // along k, of them this warp's, and tiles of the CTA
  uint32_t ring, x;
  int x_row;  // bytes

  __device__ __forceinline__ int column(int tile) const { return (int(blockIdx.x) + tile * int(gridDim.x)) * kTile; }
  __device__ __forceinline__ const uint16_t* weight(int column, int k) const {
    return p.from_b.data + column * p.from_b.line + k;
  }

  // The place of a warp in its tiles and chunks.
  struct Cursor {
    int tile = 0, chunk = 0;
    __device__ __forceinline__ void advance(int chunks) {
      if (++chunk == chunks) chunk = 0, ++tile;
    }
  };

  __device__ __forceinline__ void ask_ahead(Cursor at) const {
    for (int i = 0; i < kAhead && at.tile < tiles; i += 4) {
      const int of = lane / 8;  // of four chunks
      Cursor one = at;
      for (int j = 0; j < 4; ++j) {
        if (j == of) one = at;
        at.advance(mine);
      }
      const int n = column(one.tile) + lane % 8, k = (warp + one.chunk * kWarps) * kDepth;
      if (one.tile < tiles && n < p.n && k < p.k)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(weight(n, k)) : "memory");
    }
  }

  // The chunk of a cursor to a stage; nothing past the last one, whose group there is all the same.
  __device__ __forceinline__ void load(const Cursor& at, int stage) const {
    const int piece = lane % 8, k = (warp + at.chunk * kWarps) * kDepth + piece * 8;
    if (at.tile < tiles) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = i * 4 + lane / 8, n = column(at.tile) + row;
        const bool inside = n < p.n && k < p.k;
        copy_async(ring + stage * kStageBytes + row * kRowBytes + ((piece ^ (row & 1) << 2) << 4),
                   weight(inside ? n : 0, inside ? k : 0), inside);
      }
    }
    copy_async_commit();
  }

  // a, of rows 64 bytes past a multiple of 128 apart, so that two rows lie in different banks.
  __device__ __forceinline__ void load_rows() const {
    for (int row = 0; row < p.m; ++row) {
      const uint16_t* const from = p.from_a.data + row * p.from_a.line;
      for (int i = threadIdx.x; i < chunks * 8; i += 32 * kWarps) {
        const bool inside = i * 8 < p.k;
        copy_async(x + row * x_row + i * 16, from + (inside ? i * 8 : 0), inside);
      }
    }
    copy_async_commit();
  }

  // c += the chunk of a stage times its rows of a.
  __device__ __forceinline__ void multiply(float (&c)[4], int stage, int chunk) const {
    const int g = lane / 4, t = lane % 4;
    const uint32_t from = ring + stage * kStageBytes + g * kRowBytes;
    const uint32_t row = x + g * x_row + (warp + chunk * kWarps) * kRowBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int piece = half * 4 + t;
      const uint4 w = load_four(from + ((piece ^ (g & 1) << 2) << 4));
      uint4 v = make_uint4(0, 0, 0, 0);
      if (g < p.m) v = load_four(row + piece * 16);
      multiply_add(c, {v.x, 0, v.y, 0}, w.x, w.y);
      multiply_add(c, {v.z, 0, v.w, 0}, w.z, w.w);
    }
  }

  static __device__ __forceinline__ uint4 load_four(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
  }

  __device__ __forceinline__ float number(const void* data, int64_t at) const {
    return p.features & kOutFp32 ? static_cast<const float*>(data)[at]
                                 : element(static_cast<const uint16_t*>(data)[at]);
  }
  __device__ __forceinline__ void finish_one(int row, int column, float sum) const {
    float v[1] = {sum * p.alpha};
    if (p.row_scale != nullptr) v[0] *= p.row_scale[row];
    if (p.column_scale != nullptr) v[0] *= p.column_scale[column];
    if (p.bias != nullptr) v[0] += p.bias[p.features & kBiasOfRows ? row : column];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const Extra& extra = p.extra[e];
      if (extra.data == nullptr) continue;
      const float other = number(extra.data, row * extra.row + column * extra.column);
      v[0] = extra.multiply ? v[0] * other : fmaf(extra.factor, other, v[0]);
    }
    activate(p, v);
    const int64_t to = row * p.out_row + column;
    if (p.features & kOutFp32)
      static_cast<float*>(p.out)[to] = v[0];
    else
      store_if(true, static_cast<uint16_t*>(p.out) + to, pack(v[0], v[0]));
  }
  // `count` tiles from `first` on, whose sums all warps have left.
  __device__ __forceinline__ void finish(const Sums& sums, int turn, int first, int count) const {
    for (int at = threadIdx.x; at < count * kFewRows * kTile; at += 32 * kWarps) {
      const int tile = at / (kFewRows * kTile), place = at % (kFewRows * kTile), row = place / kTile;
      const int n = column(first + tile) + place % kTile;
      if (row >= p.m || n >= p.n) continue;
      float sum = sums[turn][tile][0][place];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) sum += sums[turn][tile][w][place];
      finish_one(row, n, sum);
    }
  }

  __device__ __forceinline__ void run(Sums& sums) const {
    Cursor loaded;
    const auto fill = [&] {
      for (int i = 0; i < kStages - 1; ++i) load(loaded, i), loaded.advance(mine);
    };
    const bool constant = p.features & kConstantB;
    if (constant) fill();
    ask_ahead(loaded);
    wait_for_launch_before();
    load_rows();
    if (constant) {
      copy_async_wait<0>();
    } else {
      fill();
      copy_async_wait<kStages - 1>();
    }
    __syncthreads();
    int stage = 0, turn = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      float c[4] = {};
      for (int chunk = 0; chunk < mine; ++chunk) {
        copy_async_wait<kStages - 2>();
        __syncwarp();
        load(loaded, stage == 0 ? kStages - 1 : stage - 1), loaded.advance(mine);
        multiply(c, stage, chunk);
        stage = stage == kStages - 1 ? 0 : stage + 1;
      }
      const int place = tile % kFewTiles;
      *reinterpret_cast<float2*>(&sums[turn][place][warp][lane / 4 * kTile + lane % 4 * 2]) = make_float2(c[0], c[1]);
      if (place + 1 < kFewTiles && tile + 1 < tiles) continue;
      __syncthreads();
      finish(sums, turn, tile - place, place + 1);
      turn ^= 1;
    }
  }
};

TILEKILN_DEVICE void few_rows(const Params& p) {
  let_next_launch_begin();
  extern __shared__ __align__(16) char memory[];
  auto& sums = *reinterpret_cast<FewRows::Sums*>(memory);
  const int warp = uniform(int(threadIdx.x) / 32), chunks = (p.k + kFewDepth - 1) / kFewDepth;
  const int tiles = (p.n + kFewColumns - 1) / kFewColumns;
  const uint32_t ring = shared_address(memory) + sizeof(FewRows::Sums), own = kFewStages * FewRows::kStageBytes;
  const FewRows self = {p,
                        warp,
                        int(threadIdx.x) & 31,
                        chunks,
                        (chunks - warp + kFewWarps - 1) / kFewWarps,
                        (tiles - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x),
                        ring + warp * own,
                        ring + kFewWarps * own,
                        chunks * FewRows::kRowBytes + 64};
  self.run(sums);
}

}  // namespace tilekiln::cuda::gemm
