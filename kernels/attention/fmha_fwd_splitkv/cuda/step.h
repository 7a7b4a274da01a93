// SPDX-License-Identifier: MIT
// A decode step in one launch: the new key and value of a sequence go into its cache, rotated on the way, as
// kernels/attention/fmha_fwd_appendkv/cuda has them, queries are rotated in registers, and splits, the CTAs of a
// cluster, merge in the shared memory of its first one. Linear caches of 16 bits.
#pragma once

#include "kernels/attention/cuda/places.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/bytes.h"
#include "kernels/backends/cuda/mma.h"

namespace tilekiln::cuda::fmha_decode {

// A row of the result: where it lies, and of which query and head.
struct Place {
  int i, h;

  __device__ __forceinline__ Place(const Params& p, int head, int row) {
    const int group = p.nhead_q / p.nhead_k;
    i = row / group, h = head * group + row % group;
  }
};

TILEKILN_DEVICE void store(const Params& p, int b, int row, int h, int d, float out0, float out1, float lse_log2) {
  const int64_t at = b * p.out_batch + h * p.out_head + row * p.out_row + d;
  if (kOfBytes && p.features & kBytesOut)
    store_bytes(p, at, out0, out1);
  else
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.out) + at) = pack(out0, out1);
  if (p.lse && d == 0) p.lse[b * p.lse_batch + h * p.lse_head + row] = lse_log2 * kLn2;
}

// Entries i and i + 1 of a table of angles.
TILEKILN_DEVICE float2 two_entries(const Step& s, const void* table, int64_t at) {
  if (s.rotary_fp32) return *reinterpret_cast<const float2*>(static_cast<const float*>(table) + at);
  float2 two;
  unpack(*reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(table) + at), two.x, two.y);
  return two;
}

// Rotates pairs (x, y) of one word each; every product and sum is rounded, the results once.
TILEKILN_DEVICE void rotate_words(uint32_t& x, uint32_t& y, float2 cos, float2 sin) {
  float x0, x1, y0, y1;
  unpack(x, x0, x1), unpack(y, y0, y1);
  x = pack(__fsub_rn(__fmul_rn(x0, cos.x), __fmul_rn(y0, sin.x)),
           __fsub_rn(__fmul_rn(x1, cos.y), __fmul_rn(y1, sin.y)));
  y = pack(__fadd_rn(__fmul_rn(y0, cos.x), __fmul_rn(x0, sin.x)),
           __fadd_rn(__fmul_rn(y1, cos.y), __fmul_rn(x1, sin.y)));
}

// Asks L2 for what the warp reads first, keys and angles, before the launch before has ended: as far as seqlen_k says
// now.
template <int kHdim, int kWarps, int kChunk, int kStages>
TILEKILN_DEVICE void ask_for_keys(const Params& p, const Step& s, int b, int head, int split, int warp, int lane) {
  if (p.table != nullptr || p.first_key != nullptr || p.row_k != nullptr) return;
  const int keys = max(0, min(__ldcg(p.seqlen_k + b), p.room_k - 1));
  const int chunks = keys / kChunk + 1;
  const int share = ((chunks + p.splits - 1) / p.splits + kWarps - 1) / kWarps * kWarps;
  const uint16_t* const k = static_cast<const uint16_t*>(p.k) + b * p.k_page + head * p.k_head;
  const uint16_t* const v = static_cast<const uint16_t*>(p.v) + b * p.v_page + head * p.v_head;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    const int i = warp + stage * kWarps, key = (split * share + i) * kChunk + lane % kChunk;
    if (i >= share || key >= keys) continue;
    const uint16_t* const row = lane < kChunk ? k + key * p.k_key : v + key * p.v_key;
#pragma unroll
    for (int at = 0; at < kHdim; at += 64) prefetch_l2(row + at);
  }
  const int bytes = s.rotary_fp32 ? 4 : 2, at = lane % 16 * 128;
  if (!s.rotates || warp != 0 || at >= kHdim / 2 * bytes) return;
  prefetch_l2(static_cast<const char*>(lane < 16 ? s.rotary_cos : s.rotary_sin) +
              keys * (lane < 16 ? s.cos_row : s.sin_row) * bytes + at);
}

// A new key and value of a head as a warp has them: words lane + 32 i of the first half of the key, of the other, and
// of the value.
struct NoKey {
  __device__ __forceinline__ NoKey(const Params&, const Step*, int, int, int) {}
};
template <int kHdim> struct NewKey {
  static constexpr int kPairs = (kHdim / 4 + 31) / 32, kValues = (kHdim / 2 + 31) / 32;
  uint32_t first[kPairs], second[kPairs], value[kValues];

  __device__ __forceinline__ NewKey(const Params& p, const Step* s, int b, int head, int lane) {
    const auto* const k = reinterpret_cast<const uint32_t*>(s->knew + b * s->knew_batch + head * s->knew_head);
    const auto* const v = reinterpret_cast<const uint32_t*>(s->vnew + b * s->vnew_batch + head * s->vnew_head);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int w = lane + 32 * i;
      first[i] = w < p.hdim_q / 4 ? k[w] : 0u, second[i] = w < p.hdim_q / 4 ? k[w + p.hdim_q / 4] : 0u;
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) value[i] = lane + 32 * i < p.hdim_v / 2 ? v[lane + 32 * i] : 0u;
  }
  // Every word and where it lies in its row: f(of the key?, number, word).
  template <class Function> __device__ __forceinline__ void each(const Params& p, int lane, Function&& f) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int w = lane + 32 * i;
      if (w < p.hdim_q / 4) f(true, w, first[i]), f(true, w + p.hdim_q / 4, second[i]);
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i)
      if (lane + 32 * i < p.hdim_v / 2) f(false, lane + 32 * i, value[i]);
  }
  __device__ __forceinline__ void rotate(const Params& p, const Step& s, int64_t position, int lane) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int w = lane + 32 * i;
      if (s.rotates && w < p.hdim_q / 4)
        rotate_words(first[i], second[i], two_entries(s, s.rotary_cos, position * s.cos_row + 2 * w),
                     two_entries(s, s.rotary_sin, position * s.sin_row + 2 * w));
    }
  }
  // Stores both to the cache.
  __device__ __forceinline__ void append(const Params& p, const Keys& keys, int head, int place, int lane) const {
    const Page page = find_page(p, keys, place);
    auto* const k = static_cast<uint16_t*>(const_cast<void*>(p.k)) + page.number * p.k_page + page.key * p.k_key;
    auto* const v = static_cast<uint16_t*>(const_cast<void*>(p.v)) + page.number * p.v_page + page.key * p.v_key;
    each(p, lane, [&](bool of_key, int number, uint32_t word) {
      reinterpret_cast<uint32_t*>(of_key ? k + head * p.k_head : v + head * p.v_head)[number] = word;
    });
  }
};

// Rotates the rows of q that a lane has of every row, in fragments of mma: words j of head dims from column(i, j) on.
template <int kHdim, class Column>
TILEKILN_DEVICE void rotate_queries(const Step& s, int64_t position, uint32_t (&q)[kHdim / 16][4], Column&& column) {
#pragma unroll
  for (int i = 0; i < kHdim / 32; ++i) {
    if (!s.rotates) break;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 cos = two_entries(s, s.rotary_cos, position * s.cos_row + column(i, j));
      const float2 sin = two_entries(s, s.rotary_sin, position * s.sin_row + column(i, j));
#pragma unroll
      for (int half = 0; half < 2; ++half) rotate_words(q[i][j * 2 + half], q[i + kHdim / 32][j * 2 + half], cos, sin);
    }
  }
}

// Stores them, when every CTA has read them.
template <int kHdim, class Column>
TILEKILN_DEVICE void store_queries(const Params& p, const Step& s, int b, int head, int rows,
                                   const uint32_t (&q)[kHdim / 16][4], int lane, Column&& column) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = (lane >> 2) + half * 8;
    if (row >= rows) continue;
    uint16_t* const to = s.q + b * p.q_batch + Place(p, head, row).h * p.q_head;
#pragma unroll
    for (int i = 0; i < kHdim / 16; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) *reinterpret_cast<uint32_t*>(to + column(i, j)) = q[i][j * 2 + half];
  }
}

// Parts of splits in the shared memory of the first CTA of a cluster: out [split][row][hdim_v], then log2 of their
// sums.
struct ClusterParts {
  uint32_t at;
  int rows, columns;
  __device__ __forceinline__ uint32_t out(int split, int row, int d) const {
    return at + ((split * rows + row) * columns + d) * 4;
  }
  __device__ __forceinline__ uint32_t sum(int splits, int split, int row) const {
    return at + (splits * rows * columns + split * rows + row) * 4;
  }
};

// The rows of a cluster's first CTA from the parts of all.
TILEKILN_DEVICE void merge_parts(const Params& p, const ClusterParts& parts, const Queries& queries, int b, int head) {
  for (int e = threadIdx.x; e < parts.rows * (p.hdim_v / 2); e += blockDim.x) {
    const int row = e / (p.hdim_v / 2), d = e % (p.hdim_v / 2) * 2;
    const Place at(p, head, row);
    float most = -kInfinity, sum = 0.f, out0 = 0.f, out1 = 0.f;
    for (int s = 0; s < p.splits; ++s) most = fmaxf(most, load_shared_float(parts.sum(p.splits, s, row)));
    const float reference = most == -kInfinity ? 0.f : most;
    for (int s = 0; s < p.splits; ++s) {
      const float weight = exp2_approx(load_shared_float(parts.sum(p.splits, s, row)) - reference);
      sum += weight;
      out0 += weight * load_shared_float(parts.out(s, row, d));
      out1 += weight * load_shared_float(parts.out(s, row, d + 1));
    }
    const float scale = sum > 0.f ? 1.f / sum : sum == sum ? 0.f : sum;
    const float lse = sum == 0.f ? -kInfinity : reference + log2_approx(sum);
    store(p, b, queries.start + at.i, at.h, d, out0 * scale, out1 * scale, lse);
  }
}

}  // namespace tilekiln::cuda::fmha_decode
