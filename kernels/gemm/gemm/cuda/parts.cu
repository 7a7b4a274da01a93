// SPDX-License-Identifier: MIT
// Kernels of products of fp32: one that writes rows of a and columns of b as parts of bf16, and the tiles of gemm.cu,
// which multiply them.
//
// A part is the number, or what the parts before it leave of it, rounded: two hold 16 bits of it, three all 24. Every
// part of a line is padded with zeros to whole stages. Infinity is 1 of its sign in the first part and infinity in the
// last one, which meets first parts alone: a part that is 0 would make NaN of it.
//
// -D: those of gemm.cu, PARTS.
#include "kernels/gemm/gemm/cuda/gemm.cu"

namespace tilekiln::cuda::gemm {

TILEKILN_DEVICE void split(const SplitParams& p) {
  auto& tile = shared_memory<SplitTile>();
  const int first = blockIdx.x * kSplitTile;
  const bool straight = p.step == 1 && p.line % 4 == 0 && reinterpret_cast<uintptr_t>(p.data) % 16 == 0;
  for (int from = blockIdx.y * kSplitTile; from < p.whole; from += gridDim.y * kSplitTile) {
    for (int i = threadIdx.x; i < kSplitTile * kSplitTile && !straight; i += kSplitThreads) {
      const int near = i % kSplitTile, far = i / kSplitTile;
      const int l = p.step == 1 ? far : near, s = p.step == 1 ? near : far;
      const bool there = first + l < p.lines && from + s < p.steps;
      tile[l][s] = there ? p.data[(first + l) * p.line + (from + s) * p.step] : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kSplitTile * kSplitTile / 8; i += kSplitThreads) {
      const int l = i / 8, s = i % 8 * 8;
      float left[8];
      if (straight && from + s + 8 <= p.steps && first + l < p.lines) {
        const float4* const four = reinterpret_cast<const float4*>(p.data + (first + l) * p.line + from + s);
        const float4 x = four[0], y = four[1];
        left[0] = x.x, left[1] = x.y, left[2] = x.z, left[3] = x.w;
        left[4] = y.x, left[5] = y.y, left[6] = y.z, left[7] = y.w;
      } else {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const bool there = straight && first + l < p.lines && from + s + e < p.steps;
          left[e] = straight ? (there ? p.data[(first + l) * p.line + from + s + e] : 0.f) : tile[l][s + e];
        }
      }
      uint16_t* const to = p.out + int64_t(first + l) * p.parts * p.whole + from + s;
      for (int part = 0; part < p.parts && first + l < p.lines; ++part) {
        uint32_t words[4] = {};
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const bool infinite = isinf(left[e]);
          const float one = infinite && part + 1 < p.parts ? copysignf(part == 0, left[e]) : left[e];
          uint32_t bits = pack(one, 0) & 0xffff;
          if ((bits & 0x7fff) == 0x7f80 && !infinite) --bits;  // the largest rather than infinity
          words[e / 2] |= bits << e % 2 * 16;
          if (!infinite) left[e] -= __uint_as_float(bits << 16);
        }
        *reinterpret_cast<uint4*>(to + int64_t(part) * p.whole) = {words[0], words[1], words[2], words[3]};
      }
    }
    __syncthreads();
  }
}

}  // namespace tilekiln::cuda::gemm

extern "C" __global__ void __launch_bounds__(gemm::kSplitThreads)
    split_parts(const __grid_constant__ gemm::SplitParams p) {
  begin_between_launches();
  gemm::split(p);
}
