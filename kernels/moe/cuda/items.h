// SPDX-License-Identifier: MIT
// Choices of tokens, one item a token and choice: warps walk the items of a part in order and rank those of an expert.
#pragma once

#include "kernels/backends/words.h"

namespace tilekiln::cuda::moe {

struct Items {
  const int* ids;  // (tokens, topk), rows `row` elements apart
  long long row;
  int topk, experts;
};

// Number of tokens that count, of `tokens`; `local` null: all.
TILEKILN_DEVICE int counted_tokens(const int* local, int tokens) {
  return local == nullptr ? tokens : max(0, min(*local, tokens));
}

// The lanes of the warp that have the same value, of so many bits.
TILEKILN_DEVICE uint32_t same_value(int value, int bits) {
  uint32_t same = ~0u;
  for (int bit = 0; bit < bits; ++bit) {
    const bool set = value >> bit & 1;
    const uint32_t these = __ballot_sync(~0u, set);
    same &= set ? these : ~these;
  }
  return same;
}

// f(token, choice, expert, whether the item is there, how many of the warp's before it are of the expert, and of all
// those): of items [first, last), 32 at a time; expert -1 of those that count nowhere.
template <class Function>
TILEKILN_DEVICE void each_item(const Items& of, long long first, long long last, Function&& f) {
  const int lane = threadIdx.x & 31;
  int bits = 1;  // that hold any number from 0 to experts
  while (bits < 31 && of.experts >> bits != 0) ++bits;
  constexpr int kAtOnce = 4;  // loads that are in flight together
  for (long long at = first; at < last; at += 32 * kAtOnce) {
    int token[kAtOnce], choice[kAtOnce], expert[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const unsigned item = unsigned(at) + 32 * i + lane;  // there are fewer than 2^31
      token[i] = int(item / unsigned(of.topk)), choice[i] = int(item - unsigned(token[i]) * unsigned(of.topk));
      expert[i] = item < last ? of.ids[token[i] * of.row + choice[i]] : -1;
      if (unsigned(expert[i]) >= unsigned(of.experts)) expert[i] = -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (at + 32 * i >= last) break;
      const uint32_t same = same_value(expert[i] + 1, bits);
      f(token[i], choice[i], expert[i], at + 32 * i + lane < last, __popc(same & ((1u << lane) - 1)), __popc(same));
      __syncwarp();
    }
  }
}

// The sum of `v` of the block's threads before this one; `all`: that of all. shared: a word a warp, which may be fewer.
template <int kWarps> TILEKILN_DEVICE int sum_before(int v, int& all, int (&shared)[kWarps]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int sum = v;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const int other = __shfl_up_sync(~0u, sum, i);
    if (lane >= i) sum += other;
  }
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  int before = 0;
  all = 0;
#pragma unroll 8
  for (int w = 0; w < int(blockDim.x >> 5); ++w) before += w < warp ? shared[w] : 0, all += shared[w];
  __syncthreads();
  return before + sum - v;
}

}  // namespace tilekiln::cuda::moe
