// SPDX-License-Identifier: MIT
// Score stages: one pass over the S tile in L1 that turns raw scores into logits, t = c s + ..., and takes the maximum of
// what it wrote. They know nothing of head dims or dtypes of Q. As passes of their own they cost 1-5 % (alibi), which bounds
// what fusing them into the products could win; the plain kernel has none and takes its maximum in the S epilogue.
#pragma once

#include "kernels/attention/cpu/tile.h"
#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/load.h"
#include "kernels/backends/cpu/tanh.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

struct Score {
  float unit;        // of the logits: 1, or log2(e) for those in log2 units
  float c;           // softmax_scale descales unit
  float softcap;     // unit softcap
  float slope;       // alibi: -slope unit
  const void* bias;  // of the tile's first row and the block's first key
  i64 bias_row;
  int rows, keys;  // that exist in this tile and block
  i64 distance;    // (first row + shift) - first key
  // Problem of an operator whose score or mask is its own, the query head, the sequence, and the block's first row and key.
  const void* own;
  int head, batch;
  i64 row, key;
};

// Vectors [j0, j1), keys [begin, end). maximum[j] is read and raised.
using ScoreStage = void (*)(float* s, int j0, int j1, int begin, int end, vf* maximum, const Score&);

// A mask of an operator's own. What the rows of a tile see of a block; some: by the lanes of seen[vector * kTileK + key].
enum class Sees { none, some, all };
using MaskStage = Sees (*)(const Score&, lane_bits* seen);

struct Scaled {
  vf c;
  explicit Scaled(const Score& score) : c(broadcast(score.c)) {}
  TILEKILN_INLINE vf operator()(vf s) const { return mul(s, c); }
};

// softcap tanh(c s / softcap): its error follows c s whatever the cap is. It takes less time than the exponential: this pass 0.90 of
// it, on AVX2 0.78.
struct SoftCapped {
  vf x;
  Tanh tanh;
  explicit SoftCapped(const Score& score) : x(broadcast(score.c / score.softcap)), tanh(score.softcap) {}
  TILEKILN_INLINE vf operator()(vf s) const { return tanh(mul(s, x)); }
};

template <class Variant> void score_map(float* s, int j0, int j1, int begin, int end, vf* maximum, const Score& score) {
  const Variant variant(score);
  for (int j = j0; j < j1; ++j) {
    vf m = maximum[j];
    TILEKILN_UNROLL(4) for (i64 key = begin; key < end; ++key) {
      float* p = s + key * kTileQ + j * kLanes;
      const vf t = variant(load(p));
      store(p, t);
      m = max(m, t);
    }
    maximum[j] = m;
  }
}

// t = (c s, soft-capped or not) - slope |i + shift - key|
template <class Variant> void score_alibi(float* s, int j0, int j1, int begin, int end, vf* maximum,
                                          const Score& score) {
  const Variant variant(score);
  const vf slope = broadcast(score.slope), one = broadcast(1.f);
  for (int j = j0; j < j1; ++j) {
    vf m = maximum[j], distance = add(iota(), broadcast(float(score.distance + j * kLanes - begin)));
    TILEKILN_UNROLL(4) for (i64 key = begin; key < end; ++key) {
      float* p = s + key * kTileQ + j * kLanes;
      const vf t = fma(abs(distance), slope, variant(load(p)));
      store(p, t);
      m = max(m, t);
      distance = sub(distance, one);
    }
    maximum[j] = m;
  }
}

// t = c s + unit bias[row][key]: rows of the bias become lanes, so it is read by transposes of kLanes x kLanes.
template <class T> void score_bias(float* s, int j0, int j1, int begin, int end, vf* maximum, const Score& score) {
  const vf c = broadcast(score.c), unit = broadcast(score.unit);
  for (int j = j0; j < j1; ++j) {
    vf m = maximum[j];
    for (int key = begin / kLanes * kLanes; key < end; key += kLanes) {
      const int n = score.keys - key;
      vf r[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int row = j * kLanes + i < score.rows ? j * kLanes + i : score.rows - 1;
        const T* p = (const T*)score.bias + row * score.bias_row + key;
        r[i] = n > 0 ? widen_some(p, n) : zero();
        __builtin_prefetch(
            p + kTileK);  // the next block of this row: nothing else streams it in (bf16 D64: cost 28 -> 19 %)
      }
      transpose(r);
      TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) {
        float* p = s + (key + i) * kTileQ + j * kLanes;
        const vf t = fma(r[i], unit, mul(load(p), c));
        store(p, t);
        if (key + i >= begin && key + i < end) m = max(m, t);
      }
    }
    maximum[j] = m;
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
