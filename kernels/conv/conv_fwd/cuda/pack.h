// SPDX-License-Identifier: MIT
// Images or filters copied to where TMA can follow them: channels together and filled up, zeros around them.
#pragma once

#include "kernels/backends/cuda/ptx.h"
#include "kernels/conv/conv_fwd/cuda/params.h"

namespace tilekiln::cuda::conv {

// One tile of kPackPixels pixels by kPackChannels of a group a block, through shared memory: lanes read along whichever of both lies
// together, and write along channels.
TILEKILN_DEVICE void pack(const Packed& p, uint16_t (&tile)[kPackChannels][kPackPixels + 2]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  constexpr int kWarps = kPackThreads / 32;
  const i64 first = i64(blockIdx.x) * kPackPixels;
  const int group = blockIdx.z, channel = blockIdx.y * kPackChannels;
  const uint16_t* const from = reinterpret_cast<const uint16_t*>(p.from) + i64(group) * p.channels * p.channel;
  // The place of a pixel in `from`; -1: it is of the zeros.
  const auto place = [&](i64 pixel) -> i64 {
    if (pixel >= p.pixels) return -1;
    i64 at = 0;
    bool inside = true;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      const i64 rest = pixel / p.out[d];
      const int in = int(pixel - rest * p.out[d]) - p.before[d];
      inside = inside && unsigned(in) < unsigned(p.in[d]);
      at += in * p.step[d], pixel = rest;
    }
    return inside ? at + pixel * p.step[3] : -1;
  };
  if (p.channel == 1) {
    for (int i = warp; i < kPackPixels; i += kWarps) {
      const i64 at = place(first + i);
#pragma unroll
      for (int c = lane; c < kPackChannels; c += 32)
        tile[c][i] = load_if(at >= 0 && channel + c < p.channels, from + at + channel + c);
    }
  } else {
    const i64 at = place(first + lane);
#pragma unroll
    for (int c = warp; c < kPackChannels; c += kWarps)
      tile[c][lane] = load_if(at >= 0 && channel + c < p.channels, from + at + (channel + c) * p.channel);
  }
  __syncthreads();
  uint16_t* const to = reinterpret_cast<uint16_t*>(p.to);
  for (int i = warp; i < kPackPixels; i += kWarps) {
    if (first + i >= p.pixels) return;
    const i64 row = ((first + i) * p.groups + group) * p.padded + channel;
    if (p.padded % 2 == 0) {
      const uint32_t both = tile[2 * lane][i] | uint32_t(tile[2 * lane + 1][i]) << 16;
      if (channel + 2 * lane < p.padded) *reinterpret_cast<uint32_t*>(to + row + 2 * lane) = both;
    } else {
#pragma unroll
      for (int c = lane; c < kPackChannels; c += 32) store_if(channel + c < p.padded, to + row + c, tile[c][i]);
    }
  }
}

}  // namespace tilekiln::cuda::conv
