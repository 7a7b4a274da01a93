// SPDX-License-Identifier: MIT
// Images or filters copied to where TMA can follow them: channels together and filled up, zeros around them.
#pragma once

#include "kernels/backends/cuda/ptx.h"
#include "kernels/conv/conv_fwd/cuda/params.h"

namespace tilekiln::cuda::conv {

// The place in `from` of a pixel of the copy; -1: it is of the zeros.
TILEKILN_DEVICE i64 place(const Packed& p, unsigned pixel) {
  if (pixel >= p.pixels) return -1;
  i64 at = 0;
  bool inside = true;
#pragma unroll
  for (int d = 0; d < 3; ++d) {
    if (p.out[d] == 1 && p.before[d] == 0) continue;
    const unsigned rest = pixel / unsigned(p.out[d]);
    const int in = int(pixel - rest * p.out[d]) - p.before[d];
    inside = inside && unsigned(in) < unsigned(p.in[d]);
    at += in * p.step[d], pixel = rest;
  }
  return inside ? at + pixel * p.step[3] : -1;
}

// A pixel of few channels a thread.
TILEKILN_DEVICE void pack_few(const Packed& p) {
  const unsigned pixel = blockIdx.x * kPackThreads + threadIdx.x;
  if (pixel >= p.pixels) return;
  const i64 at = place(p, pixel);
  const uint16_t* const from = reinterpret_cast<const uint16_t*>(p.from) + at;
  uint16_t* const to = reinterpret_cast<uint16_t*>(p.to) + i64(pixel) * p.padded;
  uint32_t of[kPackFew];
#pragma unroll
  for (int c = 0; c < kPackFew; ++c) of[c] = load_if(at >= 0 && c < p.channels, from + c * p.channel);
  const auto word = [&](int i) { return of[2 * i] | of[2 * i + 1] << 16; };
  if (p.padded == 8) {
    *reinterpret_cast<uint4*>(to) = make_uint4(word(0), word(1), word(2), word(3));
  } else if (p.padded == 4) {
    *reinterpret_cast<uint2*>(to) = make_uint2(word(0), word(1));
  } else {
#pragma unroll
    for (int c = 0; c < kPackFew; ++c) store_if(c < p.padded, to + c, of[c]);
  }
}

// One tile of kPackPixels pixels by kPackChannels of a group a block, through shared memory: lanes read along whichever
// of both lies together, and write along channels.
TILEKILN_DEVICE void pack(const Packed& p, uint16_t (&tile)[kPackChannels][kPackPixels + 2]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  constexpr int kWarps = kPackThreads / 32;
  const unsigned first = blockIdx.x * kPackPixels;
  const int group = blockIdx.z, channel = blockIdx.y * kPackChannels;
  const uint16_t* const from = reinterpret_cast<const uint16_t*>(p.from) + i64(group) * p.channels * p.channel;
  const auto there = [&](int c) { return channel + c < p.channels; };
  if (p.channel == 1) {
    for (int i = warp; i < kPackPixels; i += kWarps) {
      const i64 at = place(p, first + i);
#pragma unroll
      for (int c = lane; c < kPackChannels; c += 32) tile[c][i] = load_if(at >= 0 && there(c), from + at + channel + c);
    }
  } else if (p.pairs) {
    const i64 at = place(p, first + 2 * lane);
#pragma unroll
    for (int c = warp; c < kPackChannels; c += kWarps)
      *reinterpret_cast<uint32_t*>(&tile[c][2 * lane]) =
          load_word_if(at >= 0 && there(c), from + at + (channel + c) * p.channel);
  } else {
    const i64 at = place(p, first + lane), other = place(p, first + lane + 32);
#pragma unroll
    for (int c = warp; c < kPackChannels; c += kWarps) {
      tile[c][lane] = load_if(at >= 0 && there(c), from + at + (channel + c) * p.channel);
      tile[c][lane + 32] = load_if(other >= 0 && there(c), from + other + (channel + c) * p.channel);
    }
  }
  __syncthreads();
  uint16_t* const to = reinterpret_cast<uint16_t*>(p.to);
#pragma unroll
  for (int i = warp; i < kPackPixels; i += kWarps) {
    if (first + i >= p.pixels) return;
    const i64 row = (i64(first + i) * p.groups + group) * p.padded + channel;
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
