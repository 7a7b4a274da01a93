// SPDX-License-Identifier: MIT
// Merge of latent attention's parts of the keys, in products.cu.
#pragma once

#include "kernels/attention/fmha_mla_decode/cuda/place.h"

namespace tilekiln::cuda::mla {

// Merges the parts of a row: their weights are one thread's each, columns are four a thread.
TILEKILN_DEVICE void combine(const Params& p) {
  constexpr int kWarps = kCombineThreads / 32;
  __shared__ float weight[kCombineThreads], tops[kWarps], sums[kWarps];
  const int row = blockIdx.x, batch = blockIdx.y, rows = p.seqlen_q * p.nhead, warp = threadIdx.x / 32;
  const int query = row / p.nhead, head = row - query * p.nhead, lane = threadIdx.x % 32;
  const long long first = (long long)batch * p.splits * rows + row;
  const float lse = load_if(int(threadIdx.x) < p.splits, p.part_lse + first + (long long)threadIdx.x * rows);
  const float mine = int(threadIdx.x) < p.splits ? lse / kLn2 : kNone;
  float top = mine;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) top = larger_or_nan(top, __shfl_xor_sync(~0u, top, step));
  if (lane == 0) tops[warp] = top;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) top = larger_or_nan(top, tops[i]);
  const float from = top == kNone ? 0.f : top;
  float total = weight[threadIdx.x] = exp2_approx(mine - from);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
  if (lane == 0) sums[warp] = total;
  __syncthreads();
  total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += sums[i];
  const float inverse = total == 0 ? 0 : 1 / total;
  if (threadIdx.x == 0 && p.lse != nullptr)
    p.lse[batch * p.lse_batch + head * p.lse_head + query] = total == 0 ? kNone : (from + log2_approx(total)) * kLn2;
  uint16_t* const to = static_cast<uint16_t*>(p.out) + batch * p.out_batch + query * p.out_row + head * p.out_head;
  const int d = threadIdx.x * 4;
  if (d >= p.hdim_v) return;
  float4 sum = {};
#pragma unroll 8
  for (int s = 0; s < p.splits; ++s) {
    const float4 part = *reinterpret_cast<const float4*>(p.part_out + (first + (long long)s * rows) * p.part_row + d);
    const float w = weight[s];
    sum.x = fmaf(w, part.x, sum.x), sum.y = fmaf(w, part.y, sum.y);
    sum.z = fmaf(w, part.z, sum.z), sum.w = fmaf(w, part.w, sum.w);
  }
  const uint32_t low = pack(sum.x * inverse, sum.y * inverse), high = pack(sum.z * inverse, sum.w * inverse);
  store_if(true, to + d, low), store_if(d + 1 < p.hdim_v, to + d + 1, low >> 16);
  store_if(d + 2 < p.hdim_v, to + d + 2, high), store_if(d + 3 < p.hdim_v, to + d + 3, high >> 16);
}

}  // namespace tilekiln::cuda::mla
