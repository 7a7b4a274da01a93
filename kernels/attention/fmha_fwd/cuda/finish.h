// Sums of two rows of a lane become rows of out, and their LSE.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/score.h"

namespace tilekiln::cuda::fmha_fwd {

// O / sum, the LSE with the sink logit's share, and both to global memory.
template <int N> TILEKILN_DEVICE void finish(const Row& p, const Tile& tile, int from_first_row, int lane,
                                             float (&o)[N], const Running& r) {
  constexpr int kBlocks = N / 4;  // of 8 columns
  const int b = field(tile.b), h = field(tile.h), start_q = field(tile.start_q), seqlen_q = field(tile.seqlen_q);
  const int row = field(tile.row) + from_first_row;
  const float sink = p.sink ? p.sink[h] * kLog2E : -kInfinity;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float top = r.maximum[half] == -kInfinity ? -kInfinity : r.maximum[half] * p.score_scale_log2;
    const float reference = fmaxf(top, sink) == -kInfinity ? 0.f : fmaxf(top, sink),
                share = exp2_approx(top - reference);
    const float total = r.sum[half] * share + exp2_approx(sink - reference);
    float scale = total > 0.f ? share / total : total == total ? 0.f : total;  // a NaN stays one
    if (p.features & kDropout) scale *= p.keep_scale;
    const int at = row + 8 * half;
    const bool inside = at < seqlen_q;
    if (p.lse && inside && (lane & 3) == 0)
      p.lse[b * p.lse_batch + h * p.lse_head + start_q + at] =
          total == 0.f ? -kInfinity : (reference + log2_approx(total)) * kLn2;
    uint16_t* to = p.out + b * p.out_batch + h * p.out_head + (start_q + at) * p.out_row + (lane & 3) * 8;
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
