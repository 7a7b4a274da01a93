// SPDX-License-Identifier: MIT
// Warps of a CTA that multiply: how they meet other CTAs, load rows, and multiply them by weights of the ring.
#pragma once

#include "kernels/backends/cuda/decoder/weights.h"
#include "kernels/backends/cuda/mma.h"

namespace tilekiln::cuda::decoder {

// Warps that multiply.
struct Team {
  const Params& p;
  Barriers& barriers;
  uint32_t ring, rows;  // of weights, and of x
  float* sums;          // also parts of warps
  unsigned* word;
  int warp, lane;
  unsigned met = 0;
  Place at = {};

  static __device__ __forceinline__ void sync() { named_sync(1, 32 * kWarps); }

  // All CTAs: what they wrote before is there for all behind it. `meanwhile` depends on nothing that they write.
  template <class Meanwhile> __device__ __forceinline__ void meet(Meanwhile&& meanwhile) {
    sync();
    met += gridDim.x;
    if (threadIdx.x == 0) add_released(p.met);
    meanwhile();
    if (threadIdx.x == 0) {
      for (int polls = 0; load_acquired(p.met) < met;)
        if (++polls > kMostPolls) __trap();
    }
    sync();
  }
  __device__ __forceinline__ void meet() {
    meet([] {});
  }
  __device__ __forceinline__ int row_bytes(int depth) const { return depth * 2 + 64; }

  static __device__ __forceinline__ void add_squares(float& sum, uint4 v) {
    float x[8];
    widen(v, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(x[i], x[i], sum);
  }
  __device__ __forceinline__ uint4 normalised(uint4 v, uint4 factors, float root) const {
    float x[8], by[8];
    widen(v, x), widen(factors, by);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] *= root;
      if (p.rounds) x[i] = rounded(x[i]);
      x[i] *= by[i];
    }
    return narrow(x);
  }
  __device__ __forceinline__ float root_of(float sum, int depth) const {
    return 1.f / sqrtf(sum / float(depth) + p.epsilon);
  }
  // Rows of x, `depth` numbers each, normalised if there are factors. One row is all warps', others a warp's each.
  __device__ __forceinline__ void load_rows(const uint16_t* from, int depth, const uint16_t* factors) {
    if (factors == nullptr) return copy_rows(from, depth);
    if (p.rows == 1)
      load_rows<true, 4>(from, depth, factors);
    else
      load_rows<false, 8>(from, depth, factors);
  }
  __device__ __forceinline__ void copy_rows(const uint16_t* from, int depth) {
    const int pieces = depth / 8;
    for (int row = 0; row < p.rows; ++row)
      for (int i = threadIdx.x; i < pieces; i += 32 * kWarps)
        copy_async(rows + row * row_bytes(depth) + i * 16, from + int64_t(row) * depth + i * 8, true);
    copy_async_commit();
    copy_async_wait<0>();
    sync();
  }
  template <bool kOne, int kLoads>
  __device__ __forceinline__ void load_rows(const uint16_t* from, int depth, const uint16_t* factors) {
    const int pieces = depth / 8, step = kOne ? 32 * kWarps : 32, begin = kOne ? int(threadIdx.x) : lane;
    if (kOne || warp < p.rows) {
      const uint16_t* const row = from + (kOne ? 0 : int64_t(warp) * depth);
      const uint32_t to = rows + (kOne ? 0 : warp) * row_bytes(depth);
      uint4 gamma = load_vector_if(begin < pieces, factors + begin * 8);
      float sum = 0;
      for (int first = begin; first < pieces; first += kLoads * step) {
        uint4 v[kLoads];
#pragma unroll
        for (int j = 0; j < kLoads; ++j) v[j] = load_vector_if(first + j * step < pieces, row + (first + j * step) * 8);
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          if (first + j * step >= pieces) continue;
          store_shared(to + (first + j * step) * 16, v[j]);
          add_squares(sum, v[j]);
        }
      }
#pragma unroll
      for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
      if (kOne) {
        if (lane == 0) sums[warp] = sum;
        sync();
        sum = 0;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) sum += sums[i];
      }
      const float root = root_of(sum, depth);
      for (int i = begin; i < pieces; i += step) {
        if (i != begin) gamma = load_vector_if(true, factors + i * 8);
        store_shared(to + i * 16, normalised(load_shared(to + i * 16), gamma, root));
      }
    }
    sync();
  }

  // A stage, of which a warp takes kOwn pieces of 32 numbers along k: all are on their way before they are multiplied.
  template <int kOwn>
  __device__ __forceinline__ void multiply(float (&c)[4][4], uint32_t weight, uint32_t row, int pieces) const {
    uint4 w[kOwn], v[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int at = (warp + j * kWarps) * 64;
      w[j] = v[j] = make_uint4(0, 0, 0, 0);
      if (kOwn > 1 || warp < pieces) {
        w[j] = load_shared(weight + at);
        if (lane / 4 < p.rows) v[j] = load_shared(row + at);
      }
    }
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      multiply_add(c[j % 2], {v[j].x, 0, v[j].y, 0}, w[j].x, w[j].y);
      multiply_add(c[2 + j % 2], {v[j].z, 0, v[j].w, 0}, w[j].z, w[j].w);
    }
  }

  // Rows (rows, depth) in shared memory times weights; finish(row, column, sum, other), where other is the sum of up or
  // what `early(row, column)` gave before.
  template <bool kGated, class Early, class Finish>
  __device__ __forceinline__ void product(int columns, int depth, Early&& early, Finish&& finish) {
    constexpr int kSize = kRows * kColumns, kGranule = 32;  // numbers along k that a warp takes at a time
    const int tiles = tiles_of(columns) * (kGated ? 2 : 1), g = lane / 4, t = lane % 4;
    const uint32_t row = rows + g * row_bytes(depth) + t * 16;
    const int mine = int(threadIdx.x) / kSize * (kGated ? 2 : 1), place = threadIdx.x % kSize;
    int turn = 0;
    float other = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      if (!kGated && tile % kTiles == 0 && tile + mine < tiles && place / kColumns < p.rows)
        other = early(place / kColumns, column_of(tile + mine) + place % kColumns);
      float c[4][4] = {};
      for (int first = 0; first < depth; first += kDepth) {
        const int granules = min(kDepth, depth - first) / kGranule;
        wait(barriers.full[at.stage], at.phase);
        const uint32_t weight = ring + at.stage * kStageBytes + g * kRowBytes + t * 16, of = row + first * 2;
        if (granules == kDepth / kGranule)
          multiply<kDepth / kGranule / kWarps>(c, weight, of, granules);
        else
          for (int j = 0; j < granules; j += kWarps) multiply<1>(c, weight + j * 64, of + j * 64, granules - j);
        warp_arrive(barriers.empty[at.stage], lane);
        at.advance(p.stages);
      }
      const int in_turn = tile % kTiles;
      float* const to = sums + ((turn * kTiles + in_turn) * kWarps + warp) * kSize;
      if (g < p.rows)
        *reinterpret_cast<float2*>(to + g * kColumns + t * 2) =
            make_float2((c[0][0] + c[1][0]) + (c[2][0] + c[3][0]), (c[0][1] + c[1][1]) + (c[2][1] + c[3][1]));
      if (in_turn + 1 < kTiles && tile + 1 < tiles) continue;
      sync();
      if (mine <= in_turn && place / kColumns < p.rows) {
        const auto sum = [&](int of) {
          const float* const from = sums + (turn * kTiles + of) * kWarps * kSize + place;
          float all = from[0];
#pragma unroll
          for (int w = 1; w < kWarps; ++w) all += from[w * kSize];
          return all;
        };
        const int first = tile - in_turn + mine;
        const int column = column_of(kGated ? first >> 1 : first) + place % kColumns;
        finish(place / kColumns, column, sum(mine), kGated ? sum(mine + 1) : other);
      }
      turn ^= 1;
    }
  }

  static __device__ __forceinline__ float none(int, int) { return 0.f; }
};

}  // namespace tilekiln::cuda::decoder
