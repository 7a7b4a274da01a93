// The forward's further steps when q, k and v are e4m3.
//
// wgmma of 8 bits wants both operands along the keys in O += P v, and v lies along the head dim. So three warps of the loader's
// warpgroup turn each tile of v over in shared memory, in the order in which the lanes hold P:
//
//   keys: position 4 t + i of 16 holds key 2 t + i for i < 2, 8 + 2 t + i - 2 else: what lane t of a quad has of the scores
//   hdim: row 16 m + r of the turned tile holds column 16 m + 2 r for r < 8, 16 m + 2 (r - 8) + 1 else: so lane t of a quad has
//         the four neighbours 16 m + 4 t + 0..3 of O, and no lane's matrices meet in a bank
//
// P is rounded to e4m3 as 2^8 P, whose largest value is 256 of 448. What undoes the quantisation of q and k is a factor of the scores;
// of v, a factor of O: with scales of blocks O is kept in units of the scale of the last block, and rescaled as the maximum moves.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/shared.h"

namespace tilekiln::cuda::fmha_fwd {

constexpr int kScaleBlock = 128;  // queries or keys of a block

// Four values to e4m3, lowest byte first; the largest stands for what is beyond it.
TILEKILN_DEVICE uint32_t pack_e4m3(float a, float b, float c, float d) {
  uint32_t word;
  asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; "
      "mov.b32 %0, {l, h};}"
      : "=r"(word)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return word;
}

// A tile of v. The warps `warp` of `kWarps` share it.
template <int kWarps, class From, class To>
TILEKILN_DEVICE void turn_over(const From& from, const To& to, int warp, int lane) {
  const int row = (lane >> 3 & 1) * 8 + (lane & 7);
  for (int columns = warp; columns < To::kLines / 16; columns += kWarps) {  // 16 of them, of all keys
    uint32_t w[4][4];
#pragma unroll
    for (int keys = 0; keys < 4; ++keys) load_transposed(from.at(columns >> 3, keys * 32 + lane, columns & 7), w[keys]);
#pragma unroll
    for (int keys = 0; keys < 4; ++keys) {
      const uint32_t turned[4] = {
          __byte_perm(w[keys][0], w[keys][1], 0x6420), __byte_perm(w[keys][0], w[keys][1], 0x7531),
          __byte_perm(w[keys][2], w[keys][3], 0x6420), __byte_perm(w[keys][2], w[keys][3], 0x7531)};
      store_matrices(to.at(0, columns * 16 + row, 2 * keys + (lane >> 4)), turned);
    }
  }
}

// The factors of a launch.
struct Scaling {
  float scores = 1, values = 1;  // of q k^T and of v, where they are the same for all blocks

  TILEKILN_DEVICE Scaling of(const Row& p) {
    Scaling s;
    if (p.q_descale && !(p.features & kBlockScales)) s = {*p.q_descale * *p.k_descale, *p.v_descale};
    return s;
  }
  // Whether the scores' factor can wait for the exponential: it is one for all keys, and keeps their order.
  __device__ bool late(const Row& p) const { return !(p.features & (kBlockScales | kSoftcap)) && scores > 0; }
};

// The factors of a block of queries and one of keys.
struct BlockScales {
  const float *keys, *values;  // of this head, from the first block of the sequence on
  int most;                    // the last block there is
  float queries;

  // `row`: the first of 64 queries.
  TILEKILN_DEVICE BlockScales of(const Row& p, const Scaling& all, int b, int h, int row) {
    if (!(p.features & kBlockScales)) return {nullptr, nullptr, 0, all.scores};
    const int start_q = p.scale_start_q ? clamp(p.scale_start_q[b], 0, p.q_scales - 1) : 0;
    const int start_k = p.scale_start_k ? clamp(p.scale_start_k[b], 0, max(p.k_scales - 1, 0)) : 0;
    const int head_k = h / (p.nhead_q / p.nhead_k), at = min(start_q + row / kScaleBlock, p.q_scales - 1);
    return {p.k_descale + b * p.k_scale_batch + head_k * p.k_scale_head + start_k,
            p.v_descale + b * p.v_scale_batch + head_k * p.v_scale_head + start_k, p.k_scales - 1 - start_k,
            p.q_descale[b * p.q_scale_batch + h * p.q_scale_head + at]};
  }
};

}  // namespace tilekiln::cuda::fmha_fwd
