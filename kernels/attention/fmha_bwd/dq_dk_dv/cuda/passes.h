// SPDX-License-Identifier: MIT
// The passes before and after the backward's main kernel, `prepare` and `convert`, and the tile that all three share.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/order.h"
#include "kernels/attention/random_bytes.h"
#include "kernels/backends/cuda/dropout.h"

namespace tilekiln::cuda::fmha_bwd {

constexpr int kHdim = HDIM, kHdimV = HDIM_V;  // of q and k, and of v; kHdimV <= kHdim
constexpr bool kWide = kHdim > 128;
constexpr int kKeys = kWide ? 64 : 128, kQueryRows = QUERY_ROWS;
// Layout of dQ: blocks of four pieces of 16 rows and 64 columns, those of the same columns one behind the other.
constexpr int kTileBytes = kQueryRows * kHdim * 4, kBlocks = kTileBytes / (64 * 64 * 4);

// Blocks of dQ that have columns of the call: three of four for a head dim of 192, where a tile has 64 rows.
TILEKILN_DEVICE int blocks_of(const Params& p) {
  return kWide ? (kQueryRows / 16 * ((p.hdim_q + 63) / 64) + 3) / 4 : kBlocks;
}

// Four column groups of one row, packed and transposed, to `to` + column.
template <int N> TILEKILN_DEVICE void store_row(uint16_t* to, bool inside, int hdim, int lane, const float (&a)[N],
                                                int half, float scale) {
#pragma unroll
  for (int d = 0; d < N / 4; d += 4) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      word[i] = pack(a[(d + i) * 4 + 2 * half] * scale, a[(d + i) * 4 + 2 * half + 1] * scale);
    const uint4 line = quad_transpose(lane, word[0], word[1], word[2], word[3]);
    if (inside && d * 8 + (lane & 3) * 8 < hdim) *reinterpret_cast<uint4*>(to + d * 8 + (lane & 3) * 8) = line;
  }
}

// dK or dV: where its rows go, and by which factor.
struct KeyRows {
  uint16_t* to;
  float* sums;
  int64_t batch, head, row;
  int hdim;
  float scale;
};

TILEKILN_DEVICE KeyRows dk_of(const Params& p) {
  return {p.dk, p.dk_sums, p.dk_batch, p.dk_head, p.dk_row, p.hdim_q, p.softmax_scale};
}
TILEKILN_DEVICE KeyRows dv_of(const Params& p) {
  return {p.dv, p.dv_sums, p.dv_batch, p.dv_head, p.dv_row, p.hdim_v, p.keep_scale};
}

// The first row of a key tile in the sums of a share of sequence b.
TILEKILN_DEVICE int64_t sums_of(const Params& p, int share, int tile) {
  return (int64_t(share) * p.key_tiles + tile) * (kKeys * kHdim);
}

// Columns from `column` on of rows of dK or dV: the keys of the 16 of a warp, from `own` on in the tile, that the
// sequence has; or where shares are summed later all 16 of them.
template <int N> TILEKILN_DEVICE void store_keys(const Params& p, const Turn& t, const KeyRows& of, int own, int column,
                                                 int lane, const float (&sums)[N]) {
  const bool summed = p.key_shares > 1;
  const int share = t.share, row = own + (lane >> 2);
  if (summed) [[unlikely]] {
    float* const to = of.sums + sums_of(p, share, t.tile) + row * kHdim + column + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      *reinterpret_cast<float2*>(to + (i & 1) * 8 * kHdim + (i >> 1) * 8) = make_float2(sums[2 * i], sums[2 * i + 1]);
    return;
  }
  const int b = t.b, h = share - b * p.shares, start = start_k(p, b);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = t.tile * kKeys + row + 8 * half;
    store_row(of.to + b * of.batch + h * of.head + (start + key) * of.row + column, key < t.of.seqlen_k,
              of.hdim - column, lane, sums, half, of.scale);
  }
}

// delta, log2(e) lse, the sink logits' shares, dropout's random bytes, zeros in dbias where a mask hides it, and
// counters at zero. Grid query_tiles batch nhead_q. Rows whose LSE is below the lowest fp32 number times ln 2 have no
// weights, as on the CPU.
TILEKILN_DEVICE void prepare(const Params& p) {
  const int head = blockIdx.x / p.query_tiles, m = blockIdx.x - head * p.query_tiles;
  const int b = head / p.nhead_q, h = head - b * p.nhead_q, lane = threadIdx.x & 31;
  const Extent e = extent_of<kQueryRows, kKeys>(p, b);
  if (m >= e.query_tiles) return;
  const int64_t start = start_q(p, b), tile = tile_of<kQueryRows>(p, b, h, m);
  constexpr int kLanes = kHdimV / 8, kRows = 32 / kLanes,
                kRounds = kQueryRows / (8 * kRows);  // lanes a row, rows a warp
  const int column = lane % kLanes * 8, first = (threadIdx.x >> 5) * kRows + lane / kLanes;
  uint4 x[kRounds], y[kRounds];
  float lse_of[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {  // all loads before the first use
    const int64_t row = m * kQueryRows + first + i * 8 * kRows;
    x[i] = y[i] = make_uint4(0, 0, 0, 0);
    lse_of[i] = -kInfinity;
    if (row < e.seqlen_q && column == 0) lse_of[i] = p.lse[b * p.lse_batch + h * p.lse_head + start + row];
    if (row < e.seqlen_q && column < p.hdim_v) {
      const uint16_t* out = p.out + b * p.out_batch + h * p.out_head + (start + row) * p.out_row + column;
      const uint16_t* dout = p.dout_rows + b * p.dout_batch + h * p.dout_head + (start + row) * p.dout_row + column;
      x[i] = *reinterpret_cast<const uint4*>(out);
      y[i] = *reinterpret_cast<const uint4*>(dout);
    }
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const uint32_t a[4] = {x[i].x, x[i].y, x[i].z, x[i].w}, c[4] = {y[i].x, y[i].y, y[i].z, y[i].w};
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float a0, a1, c0, c1;
      unpack(a[j], a0, a1);
      unpack(c[j], c0, c1);
      sum += a0 * c0 + a1 * c1;
    }
#pragma unroll
    for (int distance = kLanes / 2; distance; distance >>= 1) sum += __shfl_xor_sync(~0u, sum, distance);
    if (column == 0) {
      const int in_tile = first + i * 8 * kRows, row = m * kQueryRows + in_tile;
      const int64_t at = tile * kQueryRows + in_tile, of_caller = b * p.lse_batch + h * p.lse_head + start + row;
      const float lse = lse_of[i];
      if (p.delta_out && row < e.seqlen_q) p.delta_out[of_caller] = sum;
      p.delta[at] = sum;
      p.lse_log2[at] = lse < -kLargest * kLn2 ? kInfinity : lse * kLog2E;
    }
  }
  if (p.d_sink) {
    __shared__ float of_warp[8];
    __syncthreads();
    float sum = 0.f;
    const int row = m * kQueryRows + threadIdx.x;
    if (threadIdx.x < kQueryRows && row < e.seqlen_q) {
      const float lse = p.lse[b * p.lse_batch + h * p.lse_head + start + row];
      const float delta = p.delta[tile * kQueryRows + threadIdx.x];
      if (lse != -kInfinity) sum = exp2_approx((p.sink[h] - lse) * kLog2E) * delta;
    }
#pragma unroll
    for (int distance = 16; distance; distance >>= 1) sum += __shfl_xor_sync(~0u, sum, distance);
    if (lane == 0) of_warp[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      sum = 0.f;
      for (int i = 0; i < 8; ++i) sum += of_warp[i];
      p.sink_sums[tile] = sum;
    }
  }
  if (p.dbias && p.features & kMask) {
    const int end = min((m + 1) * kQueryRows, e.seqlen_q);
    for (int row = m * kQueryRows + (threadIdx.x >> 5); row < end; row += 8)
      for (int key = lane; key < e.seqlen_k; key += 32)
        p.dbias[b * p.dbias_batch + h * p.dbias_head + (start + row) * p.dbias_row + key] = 0;
  }
  if (p.randval) {
    const uint64_t offset = p.dropout_offset + uint64_t(b * p.nhead_q + h) * 64;
    fmha::store_random_bytes(
        p.randval + b * p.randval_batch + h * p.randval_head + (start + m * kQueryRows) * p.randval_row, p.randval_row,
        m * kQueryRows, min(kQueryRows, e.seqlen_q - m * kQueryRows), e.seqlen_k, threadIdx.x, 256,
        [&](int in_patch, int row32, int key32, uint32_t* words) {
          const RandomWords drawn = philox(p.dropout_seed, offset + uint64_t(in_patch), row32, key32);
#pragma unroll
          for (int i = 0; i < 4; ++i) words[i] = drawn.word[i];
        });
  }
  for (int partial = threadIdx.x; partial < p.partials; partial += 256) p.counters[tile * p.partials + partial] = 0;
}

// d_sink[h]: a warp.
TILEKILN_DEVICE void sum_sink(const Params& p, int h, int lane) {
  float sum = 0.f;
  for (int b = 0; b < p.batch; ++b) {
    const int tiles = extent_of<kQueryRows, kKeys>(p, b).query_tiles;
    for (int m = lane; m < tiles; m += 32) sum += p.sink_sums[tile_of<kQueryRows>(p, b, h, m)];
  }
#pragma unroll
  for (int distance = 16; distance; distance >>= 1) sum += __shfl_xor_sync(~0u, sum, distance);
  if (lane == 0) p.d_sink[h] = -sum;
}

// A key tile of dk and dv: scale times the sums of its shares, in their order. Grid key_tiles batch nhead_k. A kernel
// of its own, as `convert` would wait with fewer warps for its memory.
TILEKILN_DEVICE void sum_shares(const Params& p) {
  constexpr int kLanes = kHdim == 192 ? 32 : kHdim / 8, kRows = 256 / kLanes;
  const int head = blockIdx.x / p.key_tiles, tile = blockIdx.x - head * p.key_tiles, first_share = head * p.key_shares;
  const int b = first_share / p.shares, h = head - b * (p.shares / p.key_shares), column = threadIdx.x % kLanes * 8;
  const int start = start_k(p, b), keys = min(extent_of<kQueryRows, kKeys>(p, b).seqlen_k - tile * kKeys, kKeys);
  const int64_t step = int64_t(p.key_tiles) * (kKeys * kHdim);
  if (column >= kHdim) return;
  for (int row = threadIdx.x / kLanes; row < keys; row += kRows) {
    const int64_t at = sums_of(p, first_share, tile) + row * kHdim + column;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const KeyRows of = which == 0 ? dk_of(p) : dv_of(p);
      float a[8] = {};
#pragma unroll 4
      for (int share = 0; share < p.key_shares; ++share) {
        const float4* const from = reinterpret_cast<const float4*>(of.sums + at + share * step);
        const float4 low = from[0], high = from[1];
        a[0] += low.x, a[1] += low.y, a[2] += low.z, a[3] += low.w;
        a[4] += high.x, a[5] += high.y, a[6] += high.z, a[7] += high.w;
      }
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) word[i] = pack(a[2 * i] * of.scale, a[2 * i + 1] * of.scale);
      uint16_t* const to = of.to + b * of.batch + h * of.head + (int64_t(start) + tile * kKeys + row) * of.row + column;
      if (column < of.hdim) *reinterpret_cast<uint4*>(to) = make_uint4(word[0], word[1], word[2], word[3]);
    }
  }
}

// dq = scale times the partials' sums, in their order; a partial that nobody added to holds nothing. d_sink = minus the
// rows' shares, in their order. Grid as prepare's.
TILEKILN_DEVICE void convert(const Params& p) {
  const int head = blockIdx.x / p.query_tiles, m = blockIdx.x - head * p.query_tiles;
  const int b = head / p.nhead_q, h = head - b * p.nhead_q;
  const int w = threadIdx.x >> 7, thread = threadIdx.x & 127, lane = thread & 31;
  const Extent e = extent_of<kQueryRows, kKeys>(p, b);
  if (p.d_sink && m == 0 && b == 0 && threadIdx.x < 32) sum_sink(p, h, lane);
  if (m >= e.query_tiles) return;
  const int64_t start = start_q(p, b), tile = tile_of<kQueryRows>(p, b, h, m);
  const unsigned* counters = p.counters + tile * p.partials;
  for (int block = w; block < blocks_of(p); block += 2) {
    float a[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) a[i] = 0.f;
    for (int partial = 0; partial < p.partials; ++partial) {
      if (counters[partial] == 0) continue;
      const int64_t sums = ((tile * p.partials + partial) * kBlocks + block) * (64 * 64);
      const float4* from = reinterpret_cast<const float4*>(p.dq_sums + sums) + thread;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 v = from[i * 128];
        a[4 * i] += v.x, a[4 * i + 1] += v.y, a[4 * i + 2] += v.z, a[4 * i + 3] += v.w;
      }
    }
    constexpr int kRowBlocks = kQueryRows / 16;
    const int piece = block * 4 + (thread >> 5), column = piece / kRowBlocks * 64;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m * kQueryRows + piece % kRowBlocks * 16 + (lane >> 2) + 8 * half;
      store_row(p.dq + b * p.dq_batch + h * p.dq_head + (start + row) * p.dq_row + column, row < e.seqlen_q,
                p.hdim_q - column, lane, a, half, p.softmax_scale);
    }
  }
}

}  // namespace tilekiln::cuda::fmha_bwd

extern "C" __global__ void __launch_bounds__(256)
    fmha_bwd_prepare(const __grid_constant__ tilekiln::cuda::fmha_bwd::Params p) {
  tilekiln::cuda::fmha_bwd::prepare(p);
}

extern "C" __global__ void __launch_bounds__(256)
    fmha_bwd_sum_shares(const __grid_constant__ tilekiln::cuda::fmha_bwd::Params p) {
  tilekiln::cuda::fmha_bwd::sum_shares(p);
}

extern "C" __global__ void __launch_bounds__(256)
    fmha_bwd_convert(const __grid_constant__ tilekiln::cuda::fmha_bwd::Params p) {
  tilekiln::cuda::fmha_bwd::convert(p);
}
