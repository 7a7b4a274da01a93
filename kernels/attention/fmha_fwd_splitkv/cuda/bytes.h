// SPDX-License-Identifier: MIT
// Words of decode.cu for a cache of bytes. A fragment of mma.m16n8k16 has two elements of 16 bits, and two more 8
// behind them; four neighbouring bytes of a lane of ldmatrix serve as them in another order of the 16:
//
//     positions 2 c, 2 c + 1, 2 c + 8, 2 c + 9  are  4 c, .. 4 c + 3,   c = lane % 4
//
// So are the head dims in q k^T, and the keys in both products. Linear V comes with two keys of a pair of head dims in
// a word: the even head dims of 16 are one product, the odd ones another.
#pragma once

#include "kernels/attention/fmha_fwd_splitkv/cuda/params.h"
#include "kernels/backends/cuda/mma.h"

namespace tilekiln::cuda::fmha_decode {

constexpr bool kOfBytes = BYTES;

// The key of a chunk that score j of a lane is of: 0 to 3 are two rows of the first eight, 4 to 7 of the others.
TILEKILN_DEVICE int key_of(int lane, int j) {
  return kOfBytes ? (lane & 3) * 4 + (j >> 2) * 2 + (j & 1) : (j >> 2) * 8 + (lane & 3) * 2 + (j & 1);
}
// The key that is row `row` of matrix `group`.
TILEKILN_DEVICE int row_of(int row, int group) {
  return kOfBytes ? (row >> 1) * 4 + (row & 1) + 2 * group : row + 8 * group;
}

// The place of a key among those of a chunk as matrices take them.
TILEKILN_DEVICE int position_of(int key) { return kOfBytes ? (key & 2) * 4 + (key >> 2) * 2 + (key & 1) : key; }

// Bytes are exact in fp16: in bf16 they took eight conversions, not two, which were most of a chunk's time.
// c += a b, of a column of b four bytes.
TILEKILN_DEVICE void multiply_bytes(float (&c)[4], const uint32_t (&a)[4], uint32_t four) {
  uint32_t low, high;
  unpack_e4m3(four, low, high);
  multiply_add_halves(c, a, low, high);
}
// Weights are so many times as large in fp16: those above 2^-29 keep all its bits. Sums of out are in units of `unit` /
// kWeightTimes.
constexpr float kWeightTimes = 0x1p15f;
TILEKILN_DEVICE uint32_t two_weights(const float* x) { return kOfBytes ? pack_halves(x[0], x[1]) : pack(x[0], x[1]); }

TILEKILN_DEVICE void scale_weights(float (&score)[2][4], float by) {
#pragma unroll
  for (int j = 0; j < 8; ++j) score[j >> 2][j & 3] *= by;
}

// A lane's two rows of q from bf16 to fp16, by a power of two each, which `up` undoes: the largest of a row is then
// 2^14 or more.
template <int N> TILEKILN_DEVICE void halve_queries(const Params& p, uint32_t (&q)[N][4], float (&up)[2]) {
  if (p.features & kBytesIn) return;  // fp16 already
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t top = 1 << 7;  // the largest exponent, where bf16 has it
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
      for (int j = half; j < 4; j += 2) top = max(top, max(q[i][j] & 0x7f80, q[i][j] >> 16 & 0x7f80));
    top = max(top, __shfl_xor_sync(~0u, top, 1));
    top = max(top, __shfl_xor_sync(~0u, top, 2));
    const uint32_t down = min(141 + 127 - (top >> 7), 253u);
    up[half] = __uint_as_float((254 - down) << 23);
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
      for (int j = half; j < 4; j += 2) {
        const float by = __uint_as_float(down << 23);
        q[i][j] = pack_halves(__uint_as_float(q[i][j] << 16) * by, __uint_as_float(q[i][j] & 0xffff0000u) * by);
      }
  }
}

// Two neighbours of q.
TILEKILN_DEVICE uint32_t two_of(const Params& p, int64_t at) {
  if constexpr (kOfBytes) {
    if (p.features & kBytesIn) {
      uint32_t low, high;
      unpack_e4m3(*reinterpret_cast<const uint16_t*>(static_cast<const uint8_t*>(p.q) + at), low, high);
      return low;
    }
  }
  return *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(p.q) + at);
}

// The bias has the type of out, and fp32 where that is e4m3.
TILEKILN_DEVICE const void* bias_row(const Params& p, int64_t at) {
  const bool wide = kOfBytes && p.features & kBytesOut;
  return wide ? static_cast<const void*>(static_cast<const float*>(p.bias) + at)
              : static_cast<const uint16_t*>(p.bias) + at;
}
TILEKILN_DEVICE float bias_of(const Params& p, const void* row, int key) {
  if (kOfBytes && p.features & kBytesOut) return static_cast<const float*>(row)[key];
  return element(static_cast<const uint16_t*>(row)[key]);
}

// Factors that undo the quantisation of a chunk: of the scores, that of q too; of the weights that of the values' page.
// That of all values is a factor of out.
struct ChunkScales { float keys = 1.f, values = 1.f; };
TILEKILN_DEVICE ChunkScales scales_of(const Params& p, uint32_t of_page) {
  ChunkScales s;
  if (p.q_descale) s.keys *= __ldg(p.q_descale);
  if (p.k_descale) s.keys *= __ldg(p.k_descale);
  if (p.k_page_scale) {
    float keys;
    load_shared_floats(of_page, keys, s.values);
    s.keys *= keys;
  }
  return s;
}

// Makes the largest scale of values so far the unit of out; returns what weights are multiplied by, times their scales.
template <int N> TILEKILN_DEVICE float change_unit(const ChunkScales (&scale)[N], float& unit, float (&correction)[2]) {
  const float before = unit;
#pragma unroll
  for (int c = 0; c < N; ++c) unit = fmaxf(unit, fabsf(scale[c].values));
  correction[0] *= before / unit, correction[1] *= before / unit;
  return kWeightTimes / unit;
}

// Columns of out that a lane stores together, of product d: neighbours in the first order, of two products else.
template <bool kVectorized> TILEKILN_DEVICE int column_of(int lane, int d) {
  return kOfBytes && !kVectorized ? d / 2 * 16 + (lane & 3) * 4 + d % 2 * 2 : d * 8 + (lane & 3) * 2;
}
template <bool kVectorized, int N>
TILEKILN_DEVICE float2 neighbours_of(const float (&out)[N][4], int d, int half, float by) {
  if (kOfBytes && !kVectorized)
    return make_float2(out[d & ~1][2 * half + (d & 1)] * by, out[d | 1][2 * half + (d & 1)] * by);
  return make_float2(out[d][2 * half] * by, out[d][2 * half + 1] * by);
}

#if BYTES
// Two neighbours of out as e4m3, times out_scale; the largest stands for what is beyond it.
TILEKILN_DEVICE void store_bytes(const Params& p, int64_t at, float out0, float out1) {
  const float by = p.out_scale ? __ldg(p.out_scale) : 1.f;
  *reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(p.out) + at) = uint16_t(pack_e4m3(out0 * by, out1 * by, 0.f, 0.f));
}
#else
TILEKILN_DEVICE void store_bytes(const Params&, int64_t, float, float) {}
#endif

}  // namespace tilekiln::cuda::fmha_decode
