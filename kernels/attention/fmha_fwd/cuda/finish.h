// Sums of two rows of a lane become rows of out, and their LSE.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/score.h"

namespace tilekiln::cuda::fmha_fwd {

// Four neighbours of a row of out, of e4m3.
TILEKILN_DEVICE void store_four(void* out, int64_t at, float a, float b, float c, float d) {
#ifdef TILEKILN_FP32
  *reinterpret_cast<float4*>(static_cast<float*>(out) + at) = make_float4(a, b, c, d);
#else
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(out) + at) = make_uint2(pack(a, b), pack(c, d));
#endif
}

// O / sum, the LSE with the sink logit's share, and both to global memory. `scale_log2` is what scores were multiplied with,
// `of_values` the factor of o.
template <int N> TILEKILN_DEVICE void finish(const Row& p, const Tile& tile, int from_first_row, int lane,
                                             float (&o)[N], const Running& r, float scale_log2, float of_values) {
  constexpr int kBlocks = N / 4;  // of 8 columns
  const int b = field(tile.b), h = field(tile.h), start_q = field(tile.start_q), seqlen_q = field(tile.seqlen_q);
  const int row = field(tile.row) + from_first_row;
  const float sink = sink_of(p) ? sink_of(p)[h] * kLog2E : -kInfinity;
  constexpr float kWeight = kFp8 ? 1.f / 256 : 1.f;  // 2^-kWeightExponent
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float top = r.maximum[half] == -kInfinity ? -kInfinity : r.maximum[half] * scale_log2;
    const float reference = fmaxf(top, sink) == -kInfinity ? 0.f : fmaxf(top, sink),
                share = exp2_approx(top - reference);
    const float total = r.sum[half] * kWeight * share + exp2_approx(sink - reference);
    float scale = total > 0.f ? share / total : total == total ? 0.f : total;  // a NaN stays one
    if (features_of(p) & kDropout) scale *= p.keep_scale;
    if constexpr (kFp8) scale *= kWeight * of_values;
    const int at = row + 8 * half;
    const bool inside = at < seqlen_q;
    if (lse_of(p) && inside && (lane & 3) == 0)
      lse_of(p)[b * p.lse_batch + h * p.lse_head + start_q + at] =
          total == 0.f ? -kInfinity : (reference + log2_approx(total)) * kLn2;
    const int64_t line_at = b * p.out_batch + h * p.out_head + (start_q + at) * p.out_row;
    if constexpr (kFp8) {  // columns in the order of fp8.h
#pragma unroll
      for (int d = 0; d < 2 * N; d += 16) {
        const int at_o = d / 2 + 2 * half, column = d + (lane & 3) * 4;
        if (inside && column < p.hdim_v)
          store_four(p.out, line_at + column, o[at_o] * scale, o[at_o + 4] * scale, o[at_o + 1] * scale,
                     o[at_o + 5] * scale);
      }
      continue;
    }
    uint16_t* to = static_cast<uint16_t*>(p.out) + line_at + (lane & 3) * 8;
#pragma unroll
    for (int d = 0; d < kBlocks; d += 4) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at_o = min(d + i, kBlocks - 1) * 4 + 2 * half;
        a[i] = pack(o[at_o] * scale, o[at_o + 1] * scale);
      }
      const uint4 line = quad_transpose(lane, a[0], a[1], a[2], a[3]);
      if (inside && d * 8 + (lane & 3) * 8 < p.hdim_v) *reinterpret_cast<uint4*>(to + d * 8) = line;
    }
  }
}

}  // namespace tilekiln::cuda::fmha_fwd
