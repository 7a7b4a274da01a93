// SPDX-License-Identifier: MIT
// Sums of two rows of a lane become rows of out, and their LSE.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/score.h"

namespace tilekiln::cuda::fmha_fwd {

// Four neighbours of a row of out, of e4m3.
TILEKILN_DEVICE void store_four(void* out, int64_t at, float a, float b, float c, float d) {
  if constexpr (std::is_same_v<BuildOut, float>)
    *reinterpret_cast<float4*>(static_cast<float*>(out) + at) = make_float4(a, b, c, d);
  else
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(out) + at) = make_uint2(pack(a, b), pack(c, d));
}

// The places of the rows of a tile. Read before anything that lanes do apart: behind it ptxas takes a warp for divided.
struct Place {
  int b, h, start_q, seqlen_q, row, apart;  // apart: from a lane's first row to its second
  float sink;

  TILEKILN_DEVICE Place of(const Params& p, const Tile& tile, int from_first_row, int apart) {
    const int h = field(tile.h);
    return {field(tile.b),
            h,
            field(tile.start_q),
            field(tile.seqlen_q),
            field(tile.row) + from_first_row,
            apart,
            sink_of(p) ? sink_of(p)[h] * kLog2E : -kInfinity};
  }
  __device__ __forceinline__ int64_t line(const Params& p, int at) const {
    return b * p.out_batch + h * p.out_head + (start_q + at) * p.out_row;
  }
  // The factor of o of a row; its LSE, with the sink logit's share, goes to global memory. `scale_log2` is what scores
  // were multiplied with, `of_values` the factor of o.
  __device__ __forceinline__ float end(const Params& p, int half, int lane, const SoftmaxState& r, float scale_log2,
                                       float of_values) const {
    constexpr float kWeight = kFp8 ? 1.f / 256 : 1.f;  // 2^-kWeightExponent
    const int at = row + apart * half;
    const float top = r.maximum[half] == -kInfinity ? -kInfinity : r.maximum[half] * scale_log2;
    const float reference = fmaxf(top, sink) == -kInfinity ? 0.f : fmaxf(top, sink),
                share = exp2_approx(__fsub_rn(top, reference));
    const float total = r.sum[half] * kWeight * share + exp2_approx(__fsub_rn(sink, reference));
    float scale = total > 0.f ? share / total : total == total ? 0.f : total;  // a NaN stays one
    if (features_of(p) & kDropout) scale *= p.keep_scale;
    if constexpr (kFp8) scale *= kWeight * of_values;
    if (lse_of(p) && at < seqlen_q && (lane & 3) == 0)
      lse_of(p)[b * p.lse_batch + h * p.lse_head + start_q + at] =
          total == 0.f ? -kInfinity : (reference + log2_approx(total)) * kLn2;
    return scale;
  }
};

// Two rows of a lane on their way to an out of 16 bits, rounded.
template <int N> struct OutRows {
  static constexpr int kBlocks = N / 4;  // of 8 columns

  uint32_t word[2][kBlocks];
  uint16_t* to[2];
  int columns[2];  // 0: nothing is to be stored

  __device__ __forceinline__ void clear() { columns[0] = columns[1] = 0; }

  __device__ __forceinline__ void take(const Params& p, const Tile& tile, int from_first_row, int lane,
                                       const float (&o)[N], const SoftmaxState& r, float scale_log2, int apart) {
    const Place place = Place::of(p, tile, from_first_row, apart);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = place.end(p, half, lane, r, scale_log2, 1.f);
      to[half] = static_cast<uint16_t*>(p.out) + place.line(p, place.row + place.apart * half) + (lane & 3) * 8;
      columns[half] = place.row + place.apart * half < place.seqlen_q ? p.hdim_v : 0;
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
        word[half][i] = pack(o[4 * i + 2 * half] * scale, o[4 * i + 2 * half + 1] * scale);
    }
  }

  // Stores by predicates: products may be in flight.
  __device__ __forceinline__ void store(int lane) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int d = 0; d < kBlocks; d += 4) {
        const auto block = [&](int i) { return word[half][min(d + i, kBlocks - 1)]; };
        store_if(d * 8 + (lane & 3) * 8 < columns[half], to[half] + d * 8,
                 quad_transpose(lane, block(0), block(1), block(2), block(3)));
      }
    }
  }
};

// The sums of two rows of a lane go to out. `of_values`: the factor of o.
template <int N>
TILEKILN_DEVICE void finish(const Params& p, const Tile& tile, int from_first_row, int lane, const float (&o)[N],
                            const SoftmaxState& r, float scale_log2, float of_values, int apart = 8) {
  if constexpr (kFp8) {
    const Place place = Place::of(p, tile, from_first_row, apart);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = place.end(p, half, lane, r, scale_log2, of_values);
      const int64_t line_at = place.line(p, place.row + place.apart * half);
      const bool inside = place.row + place.apart * half < place.seqlen_q;
#pragma unroll
      for (int d = 0; d < 2 * N; d += 16) {  // columns in the order of fp8.h
        const int at_o = d / 2 + 2 * half, column = d + (lane & 3) * 4;
        if (inside && column < p.hdim_v)
          store_four(p.out, line_at + column, o[at_o] * scale, o[at_o + 4] * scale, o[at_o + 1] * scale,
                     o[at_o + 5] * scale);
      }
    }
  } else {
    OutRows<N> rows;
    rows.take(p, tile, from_first_row, lane, o, r, scale_log2, apart);
    rows.store(lane);
  }
}

}  // namespace tilekiln::cuda::fmha_fwd
