// SPDX-License-Identifier: MIT
// A unit of a product with a quantised b by tiles: sums of a group of k leave their tiles, and are added to those before times their
// factors, some rows of them beside the products of the next group. bf16 and fp8 are multiplied as bf16, int8 as int8: what b holds is
// exact in both, codes of 4 bits as small integers. Sums of an element run along k in one order, whatever the unit.
#pragma once

#include "kernels/gemm/cpu/amx.h"
#include "kernels/gemm/cpu/amx_words.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kPieceSteps = 32;  // of 16 words along k, that lie unpacked: 128 KB of b
// Two blocks of sums lie in TileScratch::sums, and behind them the factors of as many groups as a piece may meet.
static_assert(8 * tiles::kTileWords + kPieceSteps * kPanel <= 2 * kGroupBlocks * kBlockRows * kPanel);
static_assert(kPanel == matrix::kPanelLanes && kPieceSteps * kStepWords <= kMostTileWords);

// A stretch of a piece of k, within one group; steps of it are filled up with 0.
struct GroupStretch {
  i64 group, k0, k1;
  int steps;
};

template <class Dot, class T> class TiledGroups {
 public:
  TiledGroups(const matrix::Grouped& g, const matrix::Unit& u, TileScratch& x)
      : g_(g), p_(g.product), u_(u), x_(x), groups_((p_.k + g.group - 1) / g.group) {}

  void run() {
    const Finish finish = finish_of(p_);
    for (int m0 = u_.m0; m0 < u_.m1; m0 += kMostTileRows) {
      const int m1 = least(u_.m1, m0 + kMostTileRows);
      i64 k = 0;
      do {
        const bool first = k == 0;
        k = take_piece(k);
        pack_rows_of_a(m0, m1);
        for (int n = u_.n0; n < u_.n1; n += kPanel) {
          unpack_panel(n);
          tiles::fence();
          for (int m = m0; m < m1; m += kBlockRows) {
            for (int half = 0; half < kPanel; half += kHalfColumns) {
              if (m1 - m > kTile)
                block<true>(m, m0, m1, n, half, first);
              else
                block<false>(m, m0, m1, n, half, first);
            }
          }
          settle();
          if (k < p_.k) continue;
          for (int m = m0; m < m1; m += kBlockRows)
            finish.block(p_, sums_of(m, m0, n), m, n, least(m1 - m, kBlockRows), least(u_.n1 - n, kPanel));
        }
      } while (k < p_.k);
    }
  }

 private:
  static constexpr int kStepElements = kStepWords * Dot::kWord;

  // Stretches from k on; returns where they end.
  i64 take_piece(i64 k) {
    count_ = 0, steps_ = 0;
    while (k < p_.k && steps_ < kPieceSteps) {
      const i64 group = k / g_.group, end = least<i64>(p_.k, (group + 1) * g_.group);
      const i64 to = least(end, k + i64(kPieceSteps - steps_) * kStepElements);
      const int steps = int((to - k + kStepElements - 1) / kStepElements);
      stretch_[count_++] = {group, k, to, steps};
      steps_ += steps, k = to;
    }
    return k;
  }

  // Blocks of 32 rows: [block][step][row][16 words].
  void pack_rows_of_a(int m0, int m1) {
    for (int r = 0; r < (m1 - m0 + kBlockRows - 1) / kBlockRows * kBlockRows; ++r) {
      float* line = x_.a + i64(r / kBlockRows) * steps_ * (kBlockRows * kStepWords) + r % kBlockRows * kStepWords;
      const T* const row = (const T*)p_.a + (m0 + r) * p_.lda;
      for (int i = 0; i < count_; ++i) {
        for (i64 k = stretch_[i].k0; k < stretch_[i].k1; k += kStepElements, line += kBlockRows * kStepWords)
          store(line, m0 + r < m1 ? TileStages<T>::line(row + k, stretch_[i].k1 - k) : zero());
      }
    }
  }

  void unpack_panel(int n) {
    const i64 number = n / kPanel;
    const uint8_t* const panel = (const uint8_t*)p_.b + number * p_.k / elements_of(g_.weights) * kLaneBytes;
    const uint8_t* const zeros = g_.b_zero ? g_.b_zero + number * groups_ * kPanel : nullptr;
    factors_ = g_.b_scale + number * groups_ * kPanel;
    if (!factors_are_wide(g_.weights) && count_ > 0) {
      const i64 first = stretch_[0].group;
      widen_factors(x_.sums + 8 * tiles::kTileWords, g_, number, groups_, first,
                    int(stretch_[count_ - 1].group - first) + 1);
      factors_ = x_.sums + 8 * tiles::kTileWords - first * kPanel;
    }
    float* to = x_.b;
    for (int i = 0; i < count_; ++i) {
      const GroupStretch& s = stretch_[i];
      GroupWords<Dot>::unpack(to, g_, panel, s.k0, s.k1, zeros ? zeros + s.group * kPanel : nullptr);
      const i64 words = (s.k1 - s.k0) / Dot::kWord * kPanel, all = i64(s.steps) * kStepWords * kPanel;
      __builtin_memset(to + words, 0, (all - words) * sizeof(float));
      to += all;
    }
  }

  float* sums_of(int m, int m0, int n) {
    return x_.waiting + i64(n - u_.n0) / kPanel * (kMostTileRows * kPanel) + (m - m0) * kPanel;
  }

  template <bool kTwo> void block(int m, int m0, int m1, int n, int half, bool first) {
    const float* a = x_.a + i64(m - m0) / kBlockRows * steps_ * (kBlockRows * kStepWords);
    const float* b = x_.b + half;
    float* const sums = sums_of(m, m0, n) + half;
    const float* const b_scale = factors_ + half;
    const float* const a_scale = g_.a_scale ? g_.a_scale + m * g_.a_scale_row : nullptr;
    if (count_ == 0) {
      for (int r = 0; r < kBlockRows; ++r) store(sums + r * kPanel, zero()), store(sums + r * kPanel + kLanes, zero());
    }
    for (int i = 0; i < count_; ++i) {
      const GroupStretch& s = stretch_[i];
      multiply<kTwo>(a, b, s.steps);
      a += i64(s.steps) * (kBlockRows * kStepWords), b += i64(s.steps) * kStepWords * kPanel;
      add(kBlockRows);
      turn_ ^= 1;
      left_ = {x_.sums + turn_ * (4 * tiles::kTileWords),
               sums,
               b_scale + s.group * kPanel,
               a_scale ? a_scale + s.group * g_.a_scale_step : nullptr,
               least(m1 - m, kBlockRows),
               0,
               first && i == 0};
      last_ = left_.from;
    }
  }

  template <bool kTwo> void multiply(const float* a, const float* b, int steps) {
    using namespace tiles;
    constexpr long row = kPanel * 4;
    load_t1<4>(a, kLineBytes), load<6>(b, row);
    leave<0>(last_), zero<0>(), Dot::template dot<0, 4, 6>();
    load<7>(b + kTile, row);
    leave<1>(last_), zero<1>(), Dot::template dot<1, 4, 7>();
    if constexpr (kTwo) load_t1<5>(a + kTileWords, kLineBytes);
    leave<2>(last_);
    if constexpr (kTwo) zero<2>(), Dot::template dot<2, 5, 6>();
    leave<3>(last_);
    if constexpr (kTwo) zero<3>(), Dot::template dot<3, 5, 7>();
    const int each = steps > 1 ? (kBlockRows + steps - 1) / steps : 0;
    for (int i = 1; i < steps; ++i) {
      a += kBlockRows * kStepWords, b += kStepWords * kPanel;
      multiply_step<Dot, kTwo>({a, kLineBytes, kTileWords, 0}, b);
      add(each);
    }
  }

  // Adds so many more rows of the group that has left its tiles.
  TILEKILN_INLINE void add(int rows) {
    const int end = least(left_.rows, left_.done + rows);
    if (left_.done >= end) return;
    const vf low = load_unaligned(left_.b_scale), high = load_unaligned(left_.b_scale + kLanes);
    for (int r = left_.done; r < end; ++r) {
      const float* const from = left_.from + (r & kTile) * (2 * kTile) + (r & (kTile - 1)) * kTile;
      float* const to = left_.to + r * kPanel;
      vf x = load(from), y = load(from + tiles::kTileWords), by_low = low, by_high = high;
      if constexpr (Dot::kWord == 4) x = from_int32(x), y = from_int32(y);
      if (left_.a_scale) {
        const vf of_row = broadcast(left_.a_scale[r * g_.a_scale_row]);
        by_low = mul(low, of_row), by_high = mul(high, of_row);
      }
      store(to, left_.first ? mul(x, by_low) : fma(x, by_low, load(to)));
      store(to + kLanes, left_.first ? mul(y, by_high) : fma(y, by_high, load(to + kLanes)));
    }
    left_.done = end;
  }

  void settle() {
    tiles::settle(last_);
    add(kBlockRows);
    left_ = {};
  }

  // Sums of a group, four tiles one after the other, on their way to those of all.
  struct Left {
    float *from = nullptr, *to = nullptr;
    const float *b_scale = nullptr, *a_scale = nullptr;
    int rows = 0, done = 0;
    bool first = false;
  };

  const matrix::Grouped& g_;
  const matrix::Problem& p_;
  const matrix::Unit& u_;
  TileScratch& x_;
  const i64 groups_;
  GroupStretch stretch_[kPieceSteps];
  int count_ = 0, steps_ = 0, turn_ = 0;
  float* last_ = nullptr;
  const float* factors_ = nullptr;  // of the panel's groups
  Left left_;
};

// The product of int8 that one group is, without a factor of its rows: sums become out beside the products, and panels are read as they lie.
inline void one_group(const matrix::Grouped& g, const matrix::Unit& u, TileScratch& x) {
  matrix::Problem p = g.product;
  p.dtype = matrix::Dtype::int8;
  p.b_panels = FlippedTiles::kWord;
  p.column_scale = g.b_scale;
  TiledUnit<FlippedTiles, int8>(p, u, x).run();
}

inline void tiled_groups(const matrix::Grouped& g, const matrix::Unit& u, void* scratch) {
  TileScratch& x = *(TileScratch*)scratch;
  const bool is_int8 = g.a_dtype == matrix::Dtype::int8;
  tiles::configure();
  if (is_int8 && g.weights == matrix::Weights::int8 && g.group >= g.product.k && g.product.k > 0 && !g.a_scale)
    one_group(g, u, x);
  else if (is_int8)
    TiledGroups<Int8Tiles, int8>(g, u, x).run();
  else if (g.a_dtype == matrix::Dtype::bf16)
    TiledGroups<Bf16Tiles, bf16>(g, u, x).run();
  else
    TiledGroups<Bf16Tiles, fp8>(g, u, x).run();
  tiles::release();
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
