// SPDX-License-Identifier: MIT
// A product of up to kFewRows rows with b contiguous along k: bound by the reading of b, the weight of a linear layer.
//
// A CTA has tiles of eight columns of out, its warps share k in chunks of 64. Each warp reads its chunks ahead into a
// ring of its own (cp.async) and meets the others once every kFewTiles tiles, to add their sums in one order. In
// mma.m16n8k16 the rows of a are the 16 and the columns of b the 8; elements along k are taken in the order in which 16
// bytes hold them, of both alike. What a launch reads of b first is on its way while the launch before it ends: to L2
// alone, as that one may write b, unless it is said not to. L2 asked for kAhead chunks of a warp all the way was
// slower: 11264 x 2048 19.3 us for 15.7 (H200). Rows of a may be normalised on their way to shared memory (norm). Of a
// product with `up` a tile of columns is one of b, then the same of up: out = activation(a b) (a up).
#pragma once

#include "kernels/backends/cuda/mma.h"
#include "kernels/gemm/gemm/cuda/epilogue.h"
#include "kernels/gemm/gemm/cuda/shared_rows.h"

namespace tilekiln::cuda::gemm {

struct FewRows {
  static constexpr int kWarps = kFewWarps, kStages = kFewStages, kDepth = kFewDepth, kTile = kFewColumns;
  static constexpr int kRowBytes = kDepth * 2, kStageBytes = kTile * kRowBytes;
  static constexpr int kAhead = 16, kAsked = 4;  // chunks of a warp that L2 is asked for, and of a time
  using Sums = float[2][kFewTiles][kWarps][kFewRows * kTile];

  const Params& p;
  int warp, lane, chunks, mine, tiles;  // along k, of them this warp's, and tiles of the CTA
  bool gated;                           // every other tile is up's
  uint32_t ring;
  SharedRows<kFewWarps, kFewRows> x;

  __device__ __forceinline__ int column(int tile) const {
    return (int(blockIdx.x) + (gated ? tile >> 1 : tile) * int(gridDim.x)) * kTile;
  }
  __device__ __forceinline__ const uint16_t* weight(int tile, int column, int k) const {
    const Gathered& from = gated && tile & 1 ? p.from_up : p.from_b;
    return from.data + column * from.line + k;
  }

  // The place of a warp in its tiles and chunks.
  struct Cursor {
    int tile = 0, chunk = 0;
    __device__ __forceinline__ void advance(int chunks) {
      if (++chunk == chunks) chunk = 0, ++tile;
    }
  };

  // Asks for kAsked chunks from a cursor on.
  __device__ __forceinline__ void ask_ahead(Cursor& at) const {
    Cursor one = at;
    for (int j = 0; j < kAsked; ++j) {
      if (j == lane / kTile) one = at;
      at.advance(mine);
    }
    const int n = column(one.tile) + lane % kTile, k = (warp + one.chunk * kWarps) * kDepth;
    if (one.tile < tiles && n < p.n && k < p.k) prefetch_l2(weight(one.tile, n, k));
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
                   weight(at.tile, inside ? n : 0, inside ? k : 0), inside);
      }
    }
    copy_async_commit();
  }

  // c += the chunk of a stage times its rows of a.
  __device__ __forceinline__ void multiply(float (&c)[4], int stage, int chunk) const {
    const int g = lane / 4, t = lane % 4;
    const uint32_t from = ring + stage * kStageBytes + g * kRowBytes;
    const uint32_t row = x.at + g * x.row_bytes + (warp + chunk * kWarps) * kRowBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int piece = half * 4 + t;
      const uint4 w = load_shared(from + ((piece ^ (g & 1) << 2) << 4));
      uint4 v = make_uint4(0, 0, 0, 0);
      if (g < p.m) v = load_shared(row + piece * 16);
      multiply_add(c, {v.x, 0, v.y, 0}, w.x, w.y);
      multiply_add(c, {v.z, 0, v.w, 0}, w.z, w.w);
    }
  }

  __device__ __forceinline__ float number(const void* data, int64_t at) const {
    return p.features & kOutFp32 ? static_cast<const float*>(data)[at]
                                 : element(static_cast<const uint16_t*>(data)[at]);
  }
  // Returns the element of the first extra matrix at the place of one of out.
  __device__ __forceinline__ float first_extra(int row, int column) const {
    const Extra& extra = p.extra[0];
    return extra.data != nullptr ? number(extra.data, row * extra.row + column * extra.column) : 0.f;
  }
  __device__ __forceinline__ void finish_one(int row, int column, float sum, float up, float first) const {
    float v[1] = {sum * p.alpha};
    if (p.row_scale != nullptr) v[0] *= p.row_scale[row];
    if (p.column_scale != nullptr) v[0] *= p.column_scale[column];
    if (p.bias != nullptr) v[0] += p.bias[p.features & kBiasOfRows ? row : column];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const Extra& extra = p.extra[e];
      if (extra.data == nullptr) continue;
      const float other = e == 0 ? first : number(extra.data, row * extra.row + column * extra.column);
      join(extra, v[0], other);
    }
    activate(p, v);
    if (gated) v[0] *= up;
    const int64_t to = row * p.out_row + column;
    if (p.features & kOutFp32)
      static_cast<float*>(p.out)[to] = v[0];
    else
      store_if(true, static_cast<uint16_t*>(p.out) + to, pack(v[0], v[0]));
  }
  // The element of out that a thread finishes of tiles from `first` on, before the next meeting of the warps.
  struct Place { int tile, at, row, column; };
  __device__ __forceinline__ Place place_of(int first) const {
    constexpr int kSize = kFewRows * kTile;
    const int tile = threadIdx.x / kSize, at = threadIdx.x % kSize,
              last = gated ? 0 : min(kFewTiles, tiles - first) - 1;
    const int n = tile <= last ? column(first + tile) + at % kTile : p.n;
    return {tile, at, n < p.n ? at / kTile : p.m, n};
  }
  // `other`: first_extra of the place. All warps have left their sums.
  __device__ __forceinline__ void finish(const Sums& sums, int turn, const Place& of, float other) const {
    static_assert(kFewTiles * kFewRows * kTile <= 32 * kWarps, "a thread finishes one element");
    if (of.row >= p.m) return;
    const auto sum = [&](int tile) {
      float all = sums[turn][tile][0][of.at];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) all += sums[turn][tile][w][of.at];
      return all;
    };
    finish_one(of.row, of.column, sum(of.tile), gated ? sum(1) : 0.f, other);
  }

  __device__ __forceinline__ void run(Sums& sums) const {
    Cursor loaded;
    const auto fill = [&] {
      for (int i = 0; i < kStages - 1; ++i) load(loaded, i), loaded.advance(mine);
    };
    const bool constant = p.features & kConstantB;
    if (constant) fill();
    Cursor asked = loaded;
    for (int i = 0; i < kAhead; i += kAsked) ask_ahead(asked);
    wait_for_launch_before();
    x.load(sums[0][0][0]);
    if (!constant) fill();
    int stage = 0, turn = 0;
    Place place = {};
    float other = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      const int in_turn = tile % kFewTiles;
      if (in_turn == 0) {
        place = place_of(tile);
        if (place.row < p.m) other = first_extra(place.row, place.column);  // on its way meanwhile
      }
      float c[4] = {};
      for (int chunk = 0; chunk < mine; ++chunk) {
        copy_async_wait<kStages - 2>();
        __syncwarp();
        load(loaded, stage == 0 ? kStages - 1 : stage - 1), loaded.advance(mine);
        multiply(c, stage, chunk);
        stage = stage == kStages - 1 ? 0 : stage + 1;
      }
      *reinterpret_cast<float2*>(&sums[turn][in_turn][warp][lane / 4 * kTile + lane % 4 * 2]) = make_float2(c[0], c[1]);
      if (in_turn + 1 < kFewTiles && tile + 1 < tiles) continue;
      __syncthreads();
      finish(sums, turn, place, other);
      turn ^= 1;
    }
  }
};

TILEKILN_DEVICE void few_rows(const Params& p) {
  let_next_launch_begin();
  extern __shared__ __align__(16) char memory[];
  auto& sums = *reinterpret_cast<FewRows::Sums*>(memory);
  const int warp = uniform(int(threadIdx.x) / 32), chunks = (p.k + kFewDepth - 1) / kFewDepth;
  const bool gated = p.features & kGated;
  const int tiles = (p.n + kFewColumns - 1) / kFewColumns;
  const uint32_t ring = shared_address(memory) + sizeof(FewRows::Sums), own = kFewStages * FewRows::kStageBytes;
  const FewRows self = {
      p,
      warp,
      int(threadIdx.x) & 31,
      chunks,
      (chunks - warp + kFewWarps - 1) / kFewWarps,
      (tiles - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x) * (gated ? 2 : 1),
      gated,
      ring + warp * own,
      {p.from_a.data, p.from_a.line, p.m, p.k, chunks * 8, p.norm, p.norm_epsilon, (p.features & kNormRounds) != 0,
       warp, int(threadIdx.x) & 31, ring + kFewWarps * own, chunks * FewRows::kRowBytes + 64}};
  self.run(sums);
}

}  // namespace tilekiln::cuda::gemm
