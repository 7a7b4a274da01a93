// SPDX-License-Identifier: MIT
// A warp's tile of S^T becomes P^T, and its dP^T becomes dS^T, with what the features of a call do to them.
//
// Layout: keys are rows. A lane holds the keys `key` and key + 8 (half = 0, 1); element j is row 8 (j / 4) + 2 (lane %
// 4) + j % 2 of the query tile, of half j / 2 % 2. Packed pairs of P^T and dS^T are first operands of products as they
// lie.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/functions.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/order.h"
#include "kernels/backends/cuda/dropout.h"

namespace tilekiln::cuda::fmha_bwd {

// The copies of the loop: kGeneral asks for a soft cap, alibi, bias and dropout; kPlain for alibi. kBiased has
// kBiasPieces and no dbias; kFunctions is alone.
enum Extras : int { kPlain, kCapped, kDropped, kBiased, kGeneral, kFunctions };

// Calls `walk` with the extras of a call. kPieces: the loop has a copy for kBiased.
template <bool kPieces = false, class Walk> TILEKILN_DEVICE void walk(const Params& p, const Walk& walk) {
  switch (p.features & (kSoftcap | kAlibi | kBias | kDropout)) {
    case 0:
    case kAlibi: walk(Constant<kPlain>{}); break;
    case kSoftcap: walk(Constant<kCapped>{}); break;
    case kDropout: walk(Constant<kDropped>{}); break;
    case kBias:
      if constexpr (kPieces) {
        if (p.features & kBiasPieces && !p.dbias) {
          walk(Constant<kBiased>{});
          break;
        }
      }
      [[fallthrough]];
    default: walk(Constant<kGeneral>{});
  }
}

// kRows: of a query tile. kOwnKeys: keys from first_key on whose masks are asked for together. kPieces: ask_bias is
// called where a call has kBiasPieces.
template <int kExtras, int kRows, int kOwnKeys, bool kPieces = false>
struct Scores : ByFunctions<Scores<kExtras, kRows, kOwnKeys, kPieces>, Functions, kRows> {
  static constexpr bool kDrops = kExtras == kDropped || kExtras == kGeneral;
  static constexpr bool kBends = kExtras == kCapped || kExtras == kGeneral;
  static constexpr bool kShares = kDrops || kBends || kExtras == kFunctions;  // dS is not of the weights
  // Divides at each step; elsewhere the turn keeps both results, which spares up to 60 instructions a step but would
  // spill 35 times here (mma.sync of head dim 64).
  static constexpr bool kDivides = kRows == 128 && kOwnKeys == 16;

  const Params& p;
  const Turn& t;
  int group, g, m, first_key, warp_key;         // warp_key: of the warp, from first_key
  int c2, key, row;                             // of this lane's first element; c2: its row in the tile
  uint32_t (&weight)[kRows / 16][4];            // P^T, dropped
  uint32_t share[kShares ? kRows / 16 : 1][4];  // of dS: undropped, times the slope
  DroppedKeys<kRows / 8> dropped;
  float slope;      // of alibi, or 0
  uint32_t pieces;  // of the bias in shared memory, 64 rows of 32 bytes and, `beyond` behind them, 64 more
  int beyond;

  __device__ __forceinline__ Scores(const Params& of, const Turn& turn, int heads, int head, int tile, int first,
                                    int warp, int lane, uint32_t (&to)[kRows / 16][4])
      : p(of),
        t(turn),
        group(heads),
        g(head),
        m(tile),
        first_key(first),
        warp_key(warp),
        c2((lane & 3) * 2),
        key(first + warp + (lane >> 2)),
        row(tile * kRows + c2),
        weight(to) {}

  __device__ __forceinline__ int sequence() const { return kDivides ? t.share / p.shares : t.b; }
  __device__ __forceinline__ int head() const { return (kDivides ? t.share % p.shares * group : t.head) + g; }

  // Dropout's bytes and alibi's slope, while the products of the scores run.
  __device__ __forceinline__ void draw() {
    if constexpr (kExtras == kPlain || kExtras == kGeneral)
      slope = load_if(p.features & kAlibi, p.alibi_slopes + sequence() * p.alibi_batch + head()) * p.bias_scale;
    if constexpr (kDrops) {
      if (kExtras == kDropped || p.features & kDropout) {
        const Dropout d{p.dropout_seed, p.dropout_offset, p.dropout_over};
        dropped.draw(d, sequence() * p.nhead_q + head(), m * kRows, first_key + warp_key);
      } else {
        dropped.none();
      }
    }
  }

  // Asks for the bias of the warp's 16 keys, 16 bytes a copy, while products run: to `place`, which is the warp's own.
  __device__ __forceinline__ void ask_bias(uint32_t place, int behind) {
    pieces = place, beyond = behind;
    const int lane = fresh_lane(), c = lane & 1, at = first_key + warp_key + 8 * c;
    const int rows = t.of.seqlen_q - m * kRows - lane / 2, left = min(max(t.of.seqlen_k - at, 0), 8) * 2;
    const uint16_t* from = p.bias + sequence() * p.bias_batch + head() * p.bias_head +
                           (start_q(p, sequence()) + m * kRows + lane / 2) * p.bias_row + at;
    const int64_t step = 16 * p.bias_row;
    const uint32_t to = piece(lane / 2, c);
#pragma unroll
    for (int i = 0; i < kRows; i += 16, from += step) {
      const int bytes = i < rows ? left : 0;
      copy_async_bytes(to + of_rows(i), bytes > 0 ? from : p.bias, bytes);
    }
    copy_async_commit();
  }
  // The piece of a row below 16, and how far behind it that of a row so many behind it lies, a multiple of 16.
  __device__ __forceinline__ uint32_t piece(int row, int c) const {
    return pieces + row * 32 + ((c ^ (row >> 2 & 1)) << 4);
  }
  __device__ __forceinline__ uint32_t of_rows(int rows) const { return rows / 64 * beyond + rows % 64 * 32; }
  __device__ __forceinline__ void add_bias(float (&score)[kRows / 2]) {
    copy_async_wait<0>();
    __syncwarp();
    const int lane = fresh_lane();
    const uint32_t from = piece((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      uint32_t word[4];
      load_matrices_transposed(word, from + of_rows(16 * i));
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        float low, high;
        unpack(word[u], low, high);
        score[8 * i + 2 * u] += p.bias_scale * low, score[8 * i + 2 * u + 1] += p.bias_scale * high;
      }
    }
    __syncwarp();  // the place is for dS then
  }

  // `lse_rows`: of the tile, in shared memory. `settle` is called before the first word of the weights is written:
  // products that still read what lies in their registers end there.
  template <class Settle>
  __device__ __forceinline__ void weigh(float (&score)[kRows / 2], const float* lse_rows, const Settle& settle) {
    if constexpr (kExtras == kFunctions)
      this->weigh_by_functions(score, lse_rows);
    else
      weigh_by_features(score, lse_rows, settle);
  }
  template <class Settle>
  __device__ __forceinline__ void weigh_by_features(float (&score)[kRows / 2], const float* lse_rows,
                                                    const Settle& settle) {
    const int low = m * kRows + t.of.shift, high = low + kRows - 1;  // the diagonal of these rows
    const float2* lse = reinterpret_cast<const float2*>(lse_rows + c2);
    // Params column j is seen iff begin <= column <= end, by half.
    const auto seen_from = [&](int half) {
      const int at = key + 8 * half;
      return at < t.of.seqlen_k ? at - p.right - low - c2 : kRows;
    };
    const auto seen_until = [&](int half) {
      const int at = key + 8 * half;
      return at < p.sink_keys ? kRows : at + p.left - low - c2;
    };
    if constexpr (!kBends) {
      if constexpr (kExtras == kBiased) add_bias(score);
      if (kExtras == kPlain && p.features & kAlibi) {  // s -= slope / scale |row + shift - key|
        const float distance = float(row + t.of.shift - key);
#pragma unroll
        for (int j = 0; j < kRows / 2; ++j)
          score[j] -= slope * fabsf(distance + float((j >> 2) * 8 + (j & 1) - (j >> 1 & 1) * 8));
      }
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        const float2 l = lse[j * 4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          score[4 * j + i] = exp2_approx(__fmaf_rn(score[4 * j + i], p.score_scale_log2, i & 1 ? -l.y : -l.x));
      }
      if (first_key + kOwnKeys - 1 > low + p.right || first_key < high - p.left ||
          first_key + kOwnKeys > t.of.seqlen_k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int begin = seen_from(half), end = seen_until(half);
#pragma unroll
          for (int j = 0; j < kRows / 2; ++j)
            if ((j >> 1 & 1) == half && ((j >> 2) * 8 + (j & 1) < begin || (j >> 2) * 8 + (j & 1) > end))
              score[j] = 0.f;
        }
      }
      settle();
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i)
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          weight[i][u] = pack(score[8 * i + 2 * u], score[8 * i + 2 * u + 1]);
          if constexpr (kDrops) {
            share[i][u] = weight[i][u];
            weight[i][u] = dropped.apply(weight[i][u], 2 * i + u / 2, u % 2);
          }
        }
    } else {
      if (kExtras == kGeneral && kPieces && p.features & kBiasPieces) {
        add_bias(score);
      } else if (kExtras == kGeneral && p.features & kBias) {
        const uint16_t* from = p.bias + sequence() * p.bias_batch + head() * p.bias_head +
                               (start_q(p, sequence()) + row) * p.bias_row + key;
#pragma unroll
        for (int j = 0; j < kRows / 2; ++j) {
          const int at = row + (j >> 2) * 8 + (j & 1), half = j >> 1 & 1;
          const bool inside = at < t.of.seqlen_q && key + 8 * half < t.of.seqlen_k;
          score[j] += p.bias_scale * element(load_if(inside, from + ((j >> 2) * 8 + (j & 1)) * p.bias_row + 8 * half));
        }
      }
      const float distance = float(row + t.of.shift - key);
      const bool capped = kExtras == kCapped || p.features & kSoftcap;
      const int begin[2] = {seen_from(0), seen_from(1)}, end[2] = {seen_until(0), seen_until(1)};
      settle();
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i)
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          const float2 l = lse[(2 * i + u / 2) * 4];
          float made[2], bent[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int column = (2 * i + u / 2) * 8 + e, half = u % 2;
            float x = score[8 * i + 2 * u + e], rest = 1.f;
            if constexpr (kBends) {
              const float tanh = tanh_approx(x * p.softcap_inner);  // without a cap: 0
              x = capped ? tanh * p.softcap : x;
              rest = __fmaf_rn(-tanh, tanh, 1.f);
            }
            if (kExtras == kGeneral) x -= slope * fabsf(distance + float(column - half * 8));
            x = exp2_approx(__fmaf_rn(x, p.score_scale_log2, e ? -l.y : -l.x));
            made[e] = column < begin[half] || column > end[half] ? 0.f : x;
            bent[e] = made[e] * rest;
          }
          weight[i][u] = pack(made[0], made[1]);
          share[i][u] = pack(bent[0], bent[1]);
          if constexpr (kDrops) weight[i][u] = dropped.apply(weight[i][u], 2 * i + u / 2, u % 2);
        }
    }
  }

  // Null without dbias.
  __device__ __forceinline__ uint16_t* dbias() const {
    if constexpr (kExtras != kGeneral) return nullptr;
    return p.dbias + sequence() * p.dbias_batch + head() * p.dbias_head + (start_q(p, sequence()) + row) * p.dbias_row +
           key;
  }

  // P^T before dropout, times the soft cap's slope: what dS^T is made of, of rows 16 i + 0..15.
  __device__ __forceinline__ uint32_t (&undropped(int i))[4] {
    if constexpr (kShares)
      return share[i];
    else
      return weight[i];
  }

  // Delta of rows 8 j + 0..7 of the tile, in shared memory.
  __device__ __forceinline__ float2 delta_of(const float* delta_rows, int j) const {
    return reinterpret_cast<const float2*>(delta_rows + c2)[j * 4];
  }

  // dS^T of rows 16 i + 0..15 from dP^T and their delta, and dbias. `to_dbias`: of dbias().
  __device__ __forceinline__ void differentiate(int i, float (&score)[kRows / 2], const float2 (&d)[2],
                                                uint16_t* to_dbias, uint32_t (&word)[4]) const {
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      float low_p, high_p;
      unpack(kShares ? share[kShares ? i : 0][u] : weight[i][u], low_p, high_p);
      if constexpr (kDrops) {
        dropped.scale(score[8 * i + 2 * u], 2 * i + u / 2, u % 2, 0, p.keep_scale);
        dropped.scale(score[8 * i + 2 * u + 1], 2 * i + u / 2, u % 2, 1, p.keep_scale);
      }
      word[u] = pack(low_p * (score[8 * i + 2 * u] - d[u / 2].x), high_p * (score[8 * i + 2 * u + 1] - d[u / 2].y));
      if (kExtras == kGeneral) {
        const int at = row + (2 * i + u / 2) * 8;
        const bool inside = p.dbias && key + u % 2 * 8 < t.of.seqlen_k;
        store_if(inside && at < t.of.seqlen_q, to_dbias + (2 * i + u / 2) * 8 * p.dbias_row + u % 2 * 8, word[u]);
        store_if(inside && at + 1 < t.of.seqlen_q, to_dbias + ((2 * i + u / 2) * 8 + 1) * p.dbias_row + u % 2 * 8,
                 word[u] >> 16);
      }
    }
  }
};

}  // namespace tilekiln::cuda::fmha_bwd
