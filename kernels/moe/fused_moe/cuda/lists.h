// SPDX-License-Identifier: MIT
// The rows of a mixture of experts, by one block: rows that experts have of each part of the items, where these begin,
// and which row each item is. A counting sort in the order of tokens: the same in every run.
#pragma once

#include "kernels/moe/cuda/items.h"
#include "kernels/moe/fused_moe/cuda/params.h"
#include "kernels/norm/cuda/quantise.h"

namespace tilekiln::cuda::moe {

// Rows as e4m3: a warp makes 128 numbers of one.
TILEKILN_DEVICE void gather_bytes(const Gather& p, int rows, int first, int step) {
  const int all = int(min((long long)rows + gemm::kTileRows, p.rows)), lane = threadIdx.x % 32;
  const bool wide = (reinterpret_cast<uintptr_t>(p.from) | p.from_row) % 8 == 0;
  for (int row = first; row < all; row += step) {
    const int token = row < rows ? __ldcg(p.tokens + row) : 0;
    const uint16_t* const from = reinterpret_cast<const uint16_t*>(p.from + token * p.from_row) + lane * 4;
    char* const to = p.to + row * p.to_row + lane * 4;
#pragma unroll 4
    for (int block = threadIdx.x / 32; block < p.columns / 128; block += blockDim.x / 32) {
      float v[4] = {};
      if (row < rows && wide) {
        const uint2 four = *reinterpret_cast<const uint2*>(from + block * 128);
        unpack(four.x, v[0], v[1]), unpack(four.y, v[2], v[3]);
      } else if (row < rows) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = element(from[block * 128 + i]);
      }
      unsigned top = 0;  // the bits of the largest magnitude: those of NaN are above infinity's
#pragma unroll
      for (int i = 0; i < 4; ++i) top = max(top, __float_as_uint(v[i]) & 0x7fffffffu);
      const norm::Scale of = norm::scale_of(__uint_as_float(__reduce_max_sync(~0u, top)), true);
      *reinterpret_cast<uint32_t*>(to + block * 128) = of.some ? norm::quantised(v, of.by, true) : 0;
      if (lane == 0) p.scale[row * (long long)(p.columns / 128) + block] = of.scale;
    }
  }
}

// Rows first, first + step and so on of `rows` that there are, by the block.
TILEKILN_DEVICE void gather_rows(const Gather& p, int rows, int first, int step) {
  if constexpr (std::is_same_v<BuildElement, e4m3>) return gather_bytes(p, rows, first, step);
  const int all = int(min((long long)rows + gemm::kTileRows, p.rows));
  const bool wide = (reinterpret_cast<uintptr_t>(p.from) | p.from_row) % 16 == 0;
  for (int row = first; row < all; row += step) {
    const int token = row < rows ? __ldcg(p.tokens + row) : 0;
    const char* const from = p.from + token * p.from_row;
    char* const to = p.to + row * p.to_row;
    const int fours = wide ? p.columns / 8 : 0;  // of words
#pragma unroll 4
    for (int i = threadIdx.x; i < fours; i += blockDim.x)
      reinterpret_cast<uint4*>(to)[i] = row < rows ? reinterpret_cast<const uint4*>(from)[i] : uint4();
    for (int i = fours * 8 + threadIdx.x; i < p.columns; i += blockDim.x)
      reinterpret_cast<uint16_t*>(to)[i] = row < rows ? reinterpret_cast<const uint16_t*>(from)[i] : uint16_t(0);
  }
}

// `counts`: (parts, all_experts).
TILEKILN_DEVICE void make_lists(const Lists& p, int* counts, int (&shared)[kListThreads / 32]) {
  constexpr int kNone = -2147483647 - 1;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const long long items = (long long)counted_tokens(p.local_tokens, p.tokens) * p.topk;
  int* const own = counts + (long long)warp * p.all_experts;
  const auto each = [&](auto&& f) {
    if (warp < p.parts)
      each_item({p.topk_ids, p.ids_row, p.topk, p.all_experts}, items * warp / p.parts, items * (warp + 1) / p.parts,
                f);
  };
  if (warp < p.parts)
    for (int e = lane; e < p.all_experts; e += 32) own[e] = 0;
  __syncwarp();
  each([&](int, int, int expert, bool, int before, int all) {
    if (expert >= 0 && before == 0) own[expert] += all;
  });
  __syncthreads();
  int rows = 0, tiles = 0, here = 0;
  for (int first = 0; first < p.all_experts; first += blockDim.x) {
    const int e = first + threadIdx.x;
    const bool named = e < p.all_experts && (p.expert_mask == nullptr || p.expert_mask[e] != 0);
    int all_here, all_rows, all_tiles, total = 0;
    const int number = here + sum_before(named ? 1 : 0, all_here, shared);
    const bool kept = named && number < p.experts;
    if (kept)
      for (int part = 0; part < p.parts; ++part) total += counts[(long long)part * p.all_experts + e];
    const int of = total / gemm::kTileRows + (total % gemm::kTileRows > 0);
    const int begin = rows + sum_before(total, all_rows, shared), tile = tiles + sum_before(of, all_tiles, shared);
    for (int i = 0; i < of; ++i) p.tiles[tile + i] = {number, begin, begin + total, tile};
    int next = begin;
    for (int part = 0; e < p.all_experts && part < p.parts; ++part) {
      int& count = counts[(long long)part * p.all_experts + e];
      const int its = count;
      count = kept ? next : kNone;
      next += its;
    }
    rows += all_rows, tiles += all_tiles, here += all_here;
  }
  if (threadIdx.x == 0) *p.tile_count = tiles;
  __syncthreads();
  each([&](int token, int choice, int expert, bool there, int before, int all) {
    const int next = expert >= 0 ? own[expert] : kNone, row = next < 0 ? -1 : next + before;
    __syncwarp();
    if (next >= 0 && before == 0) own[expert] = next + all;
    if (there) p.places[(long long)token * p.topk + choice] = row;
    if (row >= 0) p.row_tokens[row] = token;
  });
  if (p.gathers == 0) return;
  __syncthreads();
  gather_rows(p.gather, rows, 0, 1);
}

// A token's row of out, kSumThreads * kSumColumns columns of it; one that does not count, or has no expert, is 0.
TILEKILN_DEVICE void add_up(const Sums& p, int (&rows)[kSumThreads], float (&factors)[kSumThreads]) {
  const long long token = blockIdx.x;
  const int t = threadIdx.x, counted = counted_tokens(p.local_tokens, p.tokens);
  const int topk = token < counted ? p.topk : 0;
  if (t < topk) rows[t] = p.places[token * p.topk + t];
  __syncthreads();
  // Place of a row among the token's rows in their order, which is that of experts.
  const int row = t < topk ? rows[t] : -1;
  int place = 0, count = 0;
  for (int j = 0; j < topk; ++j) count += rows[j] >= 0, place += rows[j] >= 0 && rows[j] < row;
  __syncthreads();
  if (row >= 0) rows[place] = row, factors[place] = p.weights[token * p.weights_row + t];
  __syncthreads();
  const int column = (blockIdx.y * kSumThreads + t) * kSumColumns;
  if (column >= p.columns) return;
  float sum[kSumColumns] = {};
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float* const row = p.sums + rows[i] * p.sums_row + column;
    const float4 low = reinterpret_cast<const float4*>(row)[0], high = reinterpret_cast<const float4*>(row)[1];
    float x[kSumColumns] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    for (int part = 1; part < p.parts; ++part) {
#pragma unroll
      for (int c = 0; c < kSumColumns; ++c) x[c] += row[part * p.part_step + c];
    }
#pragma unroll
    for (int c = 0; c < kSumColumns; ++c) sum[c] = fmaf(factors[i], x[c], sum[c]);
  }
  uint16_t* const to = static_cast<uint16_t*>(p.out) + token * p.out_row + column;
  const uint4 line = {pack(sum[0], sum[1]), pack(sum[2], sum[3]), pack(sum[4], sum[5]), pack(sum[6], sum[7])};
  if (column + kSumColumns <= p.columns && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    *reinterpret_cast<uint4*>(to) = line;
  } else {
    const uint32_t words[4] = {line.x, line.y, line.z, line.w};
#pragma unroll
    for (int c = 0; c < kSumColumns; ++c) store_if(column + c < p.columns, to + c, words[c / 2] >> (c % 2 * 16));
  }
}

}  // namespace tilekiln::cuda::moe
