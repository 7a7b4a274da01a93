// SPDX-License-Identifier: MIT
// A unit of gemm by tiles: blocks of 32 x 32 sums in four tiles, two tiles of A and two of B a step along K. Sums of an element run
// along K in one order, C = F(C + F(even + odd)) for each step of 16 words (kernels/backends/cpu/amx/rule.h), whatever the unit: results
// do not depend on how out is cut.
//
// A block of A lies packed in L2 and is read around L1; a chunk of B along K and the sums of a group of blocks lie in L1. Sums leave
// their tiles while the next block begins, one tile after the other, since a tile that is being stored cannot be written; out is
// finished from them a few rows a step, beside the products.
#pragma once

#include "kernels/backends/cpu/amx/block.h"
#include "kernels/backends/cpu/twos.h"
#include "kernels/gemm/cpu/amx_floats.h"
#include "kernels/gemm/cpu/amx_rows.h"
#include "kernels/gemm/cpu/shared.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Words of A that lie packed (1 MB): rows are as many as fit, up to those that the algorithm names.
constexpr i64 kPackedWords = 1 << 18;
constexpr int kBlockRows = 32, kHalfColumns = 32;
constexpr int kMostTileRows = 512, kMostTileColumns = 1024, kMostTileWords = 1024;
constexpr int kChunkSteps = 8;  // along K, of 16 words: 16 KB of half a panel of B
constexpr int kGroupBlocks = 4;
constexpr int kThinRows = 16;     // one tile of A by four of B
constexpr int kFewPanels = 1;     // 128 rows of 2,048 by one panel take .66 of the time, by two as long
constexpr int kFinishedRows = 4;  // beside each step
constexpr i64 kStreamedBytes = 1 << 20;

struct TileScratch {
  alignas(64) float a[kPackedWords];
  alignas(64) float b[i64(kMostTileWords) * kPanel];
  alignas(64) float tail[kStepWords * kPanel];
  // Two groups: one is finished while the other is summed. Half a panel of B and the half of the sums that it meets lie in different
  // sets of L1: those are half a row apart.
  alignas(256) float apart[kPanel / 2];
  float sums[2 * kGroupBlocks * kBlockRows * kPanel];
  alignas(256) float apart_too[kPanel / 2];
  float waiting[i64(kMostTileRows) * kMostTileColumns];  // of K that is longer than what lies packed
  float flips[kMostTileRows];
};

// Blocks of sums that wait to become out, first come, first served.
class Finishing {
 public:
  explicit Finishing(const matrix::Problem& p) : p_(p), finish_(finish_of(p)) {
    const i64 bytes = finish_.bytes;
    const bool lines = ((i64)p.out | p.out_row * bytes) % 64 == 0 && i64(p.m) * p.out_row * bytes > kStreamedBytes;
    streams_ = finish_.as_they_are && lines &&
               (p.out_dtype == matrix::OutDtype::bf16 || p.out_dtype == matrix::OutDtype::fp32 ||
                p.out_dtype == matrix::OutDtype::int32);
  }
  ~Finishing() {
    if (streams_) stream_end();
  }
  void add(float* sums, int m, int n, int rows, int columns) {
    finish_.ask_extras(p_, m, n, rows);
    blocks_[(first_ + count_++) % kMost] = {sums, m, n, rows, columns};
  }
  TILEKILN_INLINE void some() {
    if (count_ > 0 && !lacking_) rows(kFinishedRows);
  }
  // Waits until no more than so many blocks wait.
  void down_to(int count) {
    while (count_ > count) rows(kBlockRows);
  }
  // Products that sums lack are added before they become out.
  void lack(Epilogue products) { lacking_ = products; }
  // Adds flips[m], int32, to sums of row m.
  void flip(const float* flips) { flips_ = flips; }

 private:
  struct Block {
    float* sums;
    int m, n, rows, columns;
  };
  TILEKILN_ONE_COPY void rows(int most) {
    const Block& of = blocks_[first_ % kMost];
    int rows = least(most, of.rows - done_), m = of.m + done_;
    const bool there = to_out(p_, m, rows);
    float* const sums = of.sums + done_ * kPanel;
    if (lacking_) lacking_(p_, sums, of.m + done_, of.n, rows, of.columns);
    for (int r = 0; flips_ && r < rows; ++r) {
      const vf flip = broadcast(flips_[of.m + done_ + r]);
      float* const row = sums + r * kPanel;
      TILEKILN_UNROLL(4) for (int j = 0; j < kPanel; j += kLanes) store(row + j, add_int32(load(row + j), flip));
    }
    if (there && streams_ && of.columns == kPanel)
      stream(sums, m, of.n, rows);
    else if (there)
      finish_.block(p_, sums, m, of.n, rows, of.columns);
    done_ += rows;
    if (done_ == of.rows) done_ = 0, ++first_, --count_;
  }
  // Around the caches: what would be read first, to be written, takes half the speed of int32 results.
  void stream(const float* sums, int m, int n, int rows) {
    for (int r = 0; r < rows; ++r, sums += kPanel) {
      char* const to = (char*)p_.out + ((m + r) * p_.out_row + n) * finish_.bytes;
      if (p_.out_dtype == matrix::OutDtype::bf16) {
        TILEKILN_UNROLL(2)
        for (int j = 0; j < kPanel; j += 2 * kLanes)
          stream_halves((bf16*)to + j, both(load(sums + j), load(sums + j + kLanes)));
      } else {
        TILEKILN_UNROLL(4) for (int j = 0; j < kPanel; j += kLanes) stream_words((float*)to + j, load(sums + j));
      }
    }
  }

  static constexpr int kMost = 2 * kGroupBlocks;
  const matrix::Problem& p_;
  const Finish finish_;
  Epilogue lacking_ = nullptr;
  const float* flips_ = nullptr;
  bool streams_;
  Block blocks_[kMost];
  int first_ = 0, count_ = 0, done_ = 0;
};

// The panel of B that comes next, asked for (L2) a few lines a step, as evenly as steps allow.
class Ahead {
 public:
  Ahead(const void* from, i64 steps, int blocks)
      : at_((const char*)from), end_(at_ ? at_ + steps * kStepWords * kPanel * 4 : at_), lines_(32 / blocks) {
    if (lines_ > kMostLines) lines_ = kMostLines;
  }
  TILEKILN_INLINE void some() {
    if (at_ >= end_) return;
    for (int i = 0; i < lines_; ++i) __builtin_prefetch(at_ + 64 * i, 0, 2);
    at_ += 64 * lines_;
  }

 private:
  static constexpr int kMostLines = 4;
  const char *at_, *end_;
  int lines_;
};

// A step along K onto four tiles of sums, two without kTwo: B words of half a panel.
template <class Dot, bool kTwo> TILEKILN_INLINE void multiply_step(const tiles::Operand& a, const float* b) {
  using namespace tiles;
  constexpr long row = kPanel * 4;
  load_t1<4>(a.at, a.row), load<6>(b, row);
  Dot::template dot<0, 4, 6>();
  load<7>(b + kTile, row);
  Dot::template dot<1, 4, 7>();
  if constexpr (kTwo) {
    load_t1<5>(a.at + a.second, a.row);
    Dot::template dot<2, 5, 6>();
    Dot::template dot<3, 5, 7>();
  }
}

// Floats from step to step.
template <class Dot> constexpr int kStepOfA = Dot::kParts * kBlockRows * kStepWords;
template <class Dot> constexpr int kStepOfB = Dot::kParts * kStepWords * kPanel;

// Products of the other parts of a step, after that of the first ones. Of fp16: low high, high high, high low; of fp32 in two parts hh, hm
// after mh, in three hl, mm, mh, hh, hm after lh.
template <class Dot, bool kTwo> TILEKILN_INLINE void multiply_parts(const float* a, const float* b) {
  using namespace tiles;
  const auto dots = []() __attribute__((always_inline)) {
    Dot::template dot<0, 4, 6>(), Dot::template dot<1, 4, 7>();
    if constexpr (kTwo) Dot::template dot<2, 5, 6>(), Dot::template dot<3, 5, 7>();
  };
  const auto load_a = [a](int part) __attribute__((always_inline)) {
    load_t1<4>(a + part * kBlockRows * kStepWords, kLineBytes);
    if constexpr (kTwo) load_t1<5>(a + part * kBlockRows * kStepWords + kTileWords, kLineBytes);
  };
  const auto load_b = [b](int part) __attribute__((always_inline)) {
    load<6>(b + part * kStepWords * kPanel, kPanel * 4), load<7>(b + part * kStepWords * kPanel + kTile, kPanel * 4);
  };
  if constexpr (Dot::kProducts == 6) load_a(1), load_b(1), dots(), load_a(2), load_b(2), dots(), load_b(0), dots();
  if constexpr (Dot::kProducts > 1) load_a(1), dots();
  if constexpr (Dot::kProducts > 1) load_b(Dot::kParts - 1), dots();
  if constexpr (Dot::kProducts == 4) load_a(0), dots();
}

// `steps` >= 1 of a block: B words of half a panel. kTwo: whether it has more than 16 rows. `last`: sums of the block before. soon: rows of
// A that lie as they are and are asked for (L2), or null.
template <class Dot, bool kTwo>
TILEKILN_INLINE void block_steps(tiles::Operand a, Runs runs, const float* b, int steps, const float* from, float* last,
                                 const float* soon, Finishing& finishing, Ahead& ahead) {
  using namespace tiles;
  constexpr long row = kPanel * 4;
  load_t1<4>(a.at, a.row), load<6>(b, row);
  leave<0, kPanel>(last), enter<0, kPanel>(from), Dot::template dot<0, 4, 6>();
  load<7>(b + kTile, row);
  leave<1, kPanel>(last), enter<1, kPanel>(from), Dot::template dot<1, 4, 7>();
  if constexpr (kTwo) load_t1<5>(a.at + a.second, a.row);
  leave<2, kPanel>(last);
  if constexpr (kTwo) enter<2, kPanel>(from), Dot::template dot<2, 5, 6>();
  leave<3, kPanel>(last);
  if constexpr (kTwo) enter<3, kPanel>(from), Dot::template dot<3, 5, 7>();
  multiply_parts<Dot, kTwo>(a.at, b);
  for (int i = 1; i < steps; ++i) {
    a.at += a.step, b += kStepOfB<Dot>;
    if (--runs.left == 0) a.at += runs.further, runs.left = runs.each;
    multiply_step<Dot, kTwo>(a, b);
    multiply_parts<Dot, kTwo>(a.at, b);
    ahead.some(), finishing.some();
  }
  for (int r = 0; soon && r < kBlockRows; ++r) {
    const char* const line = (const char*)soon + r * a.row;
    for (int i = 0; i < steps; ++i) __builtin_prefetch(line + i * kLineBytes, 0, 2);
  }
}

// Multiplies at most 16 rows by a panel: B is read once, from one end to the other, as memory gives it best.
template <class Dot>
TILEKILN_INLINE void thin_steps(const float* a, const float* b, i64 steps, const float* from, Finishing& finishing) {
  using namespace tiles;
  constexpr long row = kPanel * 4;
  constexpr int ahead = 4;  // steps
  const auto enter_one = [&]<int T>() __attribute__((always_inline)) {
    if (from)
      tiles::load<T>(from + T * kTile, row);
    else
      tiles::zero<T>();
  };
  enter_one.template operator()<0>(), enter_one.template operator()<1>();
  enter_one.template operator()<2>(), enter_one.template operator()<3>();
  for (i64 i = 0; i < steps; ++i, a += kTileWords, b += kStepWords * kPanel) {
    const char* const soon = (const char*)(b + ahead * kStepWords * kPanel);
    load<4>(a, kLineBytes);
    load<5>(b, row), Dot::template dot<0, 4, 5>();
    TILEKILN_UNROLL(16) for (int j = 0; j < 32; ++j) __builtin_prefetch(soon + 64 * j, 0, 3);
    load<6>(b + kTile, row), Dot::template dot<1, 4, 6>();
    load<7>(b + 2 * kTile, row), Dot::template dot<2, 4, 7>();
    TILEKILN_UNROLL(16) for (int j = 32; j < 64; ++j) __builtin_prefetch(soon + 64 * j, 0, 3);
    load<5>(b + 3 * kTile, row), Dot::template dot<3, 4, 5>();
    finishing.some();
  }
}

// A panel of B in words from k on, as steps can read it: a stretch of whole steps, and a last one that is filled up with 0.
struct PanelOfB {
  const float* words;
  int steps;
  const float* tail;  // null: without
};

template <class Dot, class T> class TiledUnit {
 public:
  TiledUnit(const matrix::Problem& p, const matrix::Unit& u, TileScratch& x) : p_(p), u_(u), x_(x), finishing_(p) {}

  void run() {
    const int rows = u_.m1 - u_.m0;
    if (p_.k == 0) return run_empty();
    const bool thin = rows <= kThinRows && kParts == 1;
    // Rows of words that are whole tiles: few panels do not pay for packing them.
    const bool whole = kWords && !p_.a_columns && rows % kTile == 0 && p_.k % (kStepWords * Dot::kWord) == 0;
    as_it_lies_ = !thin && kParts == 1 && (p_.a_words || (whole && u_.n1 - u_.n0 <= kFewPanels * kPanel));
    constexpr int most_named = kMostTileWords / Dot::kProducts;
    const int named = p_.tile_k ? least(p_.tile_k, most_named) : most_named;
    const bool turned =
        thin && kWords && !kFlipped<Dot> && is_turned<T, Dot>(p_, kPackedWords / kTile) && (u_.n1 - u_.n0) % kTile == 0;
    const i64 words = (p_.k + Dot::kWord - 1) / Dot::kWord;
    const i64 most_words = turned || (thin && p_.b_panels) ? kPackedWords / kTile
                           : named < kStepWords            ? kStepWords
                                                           : named;
    // Steps of K that lie packed at a time, in even parts.
    const i64 all_steps = (words + kStepWords - 1) / kStepWords,
              most_steps = least<i64>(most_words / kStepWords, all_steps);
    const i64 parts = (all_steps + most_steps - 1) / most_steps, part = (all_steps + parts - 1) / parts;
    const i64 packed_rows = kPackedWords / (part * kStepWords * kParts) / kBlockRows * kBlockRows;
    const i64 fit = as_it_lies_ ? kMostTileRows : packed_rows;
    const int most = p_.tile_m ? least(p_.tile_m, kMostTileRows) / kBlockRows * kBlockRows : kMostTileRows;
    const int most_rows = int(least<i64>(fit, most > kBlockRows ? most : kBlockRows));
    const int blocks = (rows + most_rows - 1) / most_rows;  // of like height
    const int some = thin ? kThinRows : ((rows + blocks - 1) / blocks + kBlockRows - 1) / kBlockRows * kBlockRows;
    for (int m0 = u_.m0; m0 < u_.m1; m0 += some) {
      const int m1 = least(u_.m1, m0 + some);
      if constexpr (kFlipped<Dot>) flips_of(x_.flips, p_, m0, m1), finishing_.flip(x_.flips - m0);
      for (i64 s = 0; s < all_steps; s += part) {
        const i64 k0 = s * kStepWords * Dot::kWord;
        const i64 k1 = least<i64>(p_.k, k0 + part * kStepWords * Dot::kWord);
        if constexpr (kOfFloats) {
          pack_a_floats<T>(x_.a, p_, m0, m1, k0, k1, parts_.special);
        } else if (!as_it_lies_) {
          pack_a<T>(x_.a, p_, m0, m1, k0, k1, thin ? kThinRows : kBlockRows, parts_);
        }
        if (turned) turn_tiles(x_.a, all_steps);
        lack_specials();
        tiles::fence();
        for (int n = u_.n0; n < u_.n1; n += kPanel) {
          if (turned)
            turned_panel(m0, m1, n);
          else if (thin)
            thin_panel(m0, m1, n, k0, k1);
          else
            panel(m0, m1, n, k0, k1);
        }
      }
      end();
    }
  }

 private:
  void run_empty() {
    constexpr size_t bytes = kBlockRows * kPanel * sizeof(float);
    for (int m = u_.m0; m < u_.m1; m += kBlockRows) {
      for (int n = u_.n0; n < u_.n1; n += kPanel) {
        __builtin_memset(x_.sums, 0, bytes);
        finishing_.add(x_.sums, m, n, least(u_.m1 - m, kBlockRows), least(u_.n1 - n, kPanel));
        finishing_.down_to(0);
      }
    }
  }

  void lack_specials() {
    if constexpr (kParts > 1) {
      if (parts_.special) finishing_.lack(add_specials<T>);
    }
  }

  PanelOfB panel_of_b(int n, i64 k0, i64 k1) {
    const i64 words = (k1 - k0 + Dot::kWord - 1) / Dot::kWord;
    const int whole = int(words / kStepWords), rest = int(words % kStepWords), steps = whole + (rest != 0);
    const int columns = least(u_.n1 - n, kPanel);
    const bool as_it_lies = kParts == 1 && p_.b_panels;
    if constexpr (kOfFloats) {
      pack_b_floats<T>(x_.b, p_, n, columns, k0, k1, parts_.special);
    } else if constexpr (kParts > 1) {
      pack_b_parts<T>(x_.b, p_, n, columns, k0, k1, parts_);
    } else if (!as_it_lies) {
      pack_b<T>(x_.b, p_, n, columns, k0, k1);
      __builtin_memset(x_.b + words * kPanel, 0, (steps * kStepWords - words) * kPanel * sizeof(float));
    }
    lack_specials();
    if (!as_it_lies) {
      tiles::fence();
      return {x_.b, steps, nullptr};
    }
    const i64 all = (i64(p_.k) + Dot::kWord - 1) / Dot::kWord;
    const float* const from = (const float*)p_.b + (n / kPanel * all + k0 / Dot::kWord) * kPanel;
    if (rest == 0) return {from, whole, nullptr};
    __builtin_memcpy(x_.tail, from + whole * kStepWords * kPanel, rest * kPanel * sizeof(float));
    __builtin_memset(x_.tail + rest * kPanel, 0, (kStepWords - rest) * kPanel * sizeof(float));
    tiles::fence();
    return {from, whole, x_.tail};
  }

  // The panel after that of column n; null where it is packed first, or there is none.
  const float* next_panel(int n, i64 k0) const {
    if (p_.b_panels == 0 || kParts > 1 || n + kPanel >= u_.n1) return nullptr;
    const i64 all = (i64(p_.k) + Dot::kWord - 1) / Dot::kWord;
    return (const float*)p_.b + ((n / kPanel + 1) * all + k0 / Dot::kWord) * kPanel;
  }

  float* own_sums() { return x_.sums + turn_ * (kGroupBlocks * kBlockRows * kPanel); }
  float* waiting(int m, int m0, int n) {
    return x_.waiting + i64(n - u_.n0) / kPanel * (kMostTileRows * kPanel) + (m - m0) * kPanel;
  }

  void panel(int m0, int m1, int n, i64 k0, i64 k1) {
    const bool begins = k0 == 0, ends = k1 == p_.k;
    const int columns = least(u_.n1 - n, kPanel);
    const PanelOfB b = panel_of_b(n, k0, k1);
    Ahead ahead(next_panel(n, k0), b.steps, (m1 - m0 + kBlockRows - 1) / kBlockRows);
    const i64 lies = i64(kTile) * p_.lda * (i64)sizeof(T) / 4,
              packed = (b.steps + (b.tail != nullptr)) * i64(kStepOfA<Dot>);
    const Runs all_runs = runs_of<T>(p_);
    const int most = p_.a_run ? chunk_of_runs(b.steps) : kChunkSteps / kParts;
    const float* const in_place = (const float*)((const T*)p_.a + m0 * p_.lda);
    const i64 step0 = as_it_lies_ ? k0 * (i64)sizeof(T) / kLineBytes : 0;
    const tiles::Operand all = as_it_lies_ ? tiles::Operand{in_place, long(p_.lda * sizeof(T)), lies, kStepWords}
                                           : tiles::Operand{x_.a, kLineBytes, kTileWords, kStepOfA<Dot>};
    const i64 a_block = as_it_lies_ ? 2 * lies : packed;
    for (int g0 = m0; g0 < m1; g0 += kGroupBlocks * kBlockRows, turn_ ^= 1) {
      const int g1 = least(m1, g0 + kGroupBlocks * kBlockRows);
      finishing_.down_to(before_);  // those that have the sums which this group writes
      float* const sums = own_sums();
      for (int half = 0; half < columns; half += kHalfColumns) {
        for (int step = 0; step < b.steps + (b.tail != nullptr);) {
          const bool in_tail = step == b.steps;
          const int steps = in_tail ? 1 : least(most, b.steps - step), next = step + steps;
          const float* const words = (in_tail ? b.tail : b.words + i64(step) * kStepOfB<Dot>)+half;
          const Runs runs = all_runs.from(step0 + step);
          const i64 here = all_runs.place(step0 + step, all.step), after = all_runs.place(step0 + next, all.step);
          const bool first = step == 0, last = next == b.steps + (b.tail != nullptr);
          for (int m = g0; m < g1; m += kBlockRows) {
            float* const own = sums + (m - g0) * kPanel + half;
            float* const kept = waiting(m, m0, n) + half;
            const float* const from = !first ? own : begins ? nullptr : kept;
            tiles::Operand a = all;
            a.at += (m - m0) / kBlockRows * a_block + here;
            const bool fresh = as_it_lies_ && p_.a_run == 0 && n == u_.n0 && half == 0 && g1 - g0 >= 2 * kBlockRows;
            const float* const soon = !fresh                     ? nullptr
                                      : m + 2 * kBlockRows <= g1 ? a.at + a_block
                                      : m + kBlockRows == g1 && !last
                                          ? all.at + (g0 - m0) / kBlockRows * a_block + after
                                          : nullptr;
            if (g1 - m > kTile)
              block_steps<Dot, true>(a, runs, words, steps, from, last_, soon, finishing_, ahead);
            else
              block_steps<Dot, false>(a, runs, words, steps, from, last_, soon, finishing_, ahead);
            last_ = last && !ends ? kept : own;
          }
          step = next;
        }
      }
      if (!ends) continue;
      before_ = 0;
      for (int m = g0; m < g1; m += kBlockRows, ++before_)
        finishing_.add(sums + (m - g0) * kPanel, m, n, least(m1 - m, kBlockRows), columns);
    }
  }

  void thin_panel(int m0, int m1, int n, i64 k0, i64 k1) {
    using namespace tiles;
    const bool begins = k0 == 0, ends = k1 == p_.k;
    const PanelOfB b = panel_of_b(n, k0, k1);
    float *const own = own_sums(), *const kept = waiting(m0, m0, n);
    finishing_.down_to(1);
    thin_steps<Dot>(x_.a, b.words, b.steps, begins ? nullptr : kept, finishing_);
    float* const to = ends ? own : kept;
    const auto put = [&] {
      store<0>(to, kPanel * 4), store<1>(to + kTile, kPanel * 4);
      store<2>(to + 2 * kTile, kPanel * 4), store<3>(to + 3 * kTile, kPanel * 4);
    };
    put();
    if (b.tail) {
      thin_steps<Dot>(x_.a + i64(b.steps) * kTileWords, b.tail, 1, to, finishing_);
      put();
    }
    if (!ends) return;
    finishing_.add(own, m0, n, m1 - m0, least(u_.n1 - n, kPanel));
    turn_ ^= 1;
  }

  void turned_panel(int m0, int m1, int n) {
    const int columns = least(u_.n1 - n, kPanel);
    float* const own = own_sums();
    finishing_.down_to(1);
    multiply_turned<Dot>(x_.a, (const char*)((const T*)p_.b + n * p_.ldb), p_.ldb * (i64)sizeof(T), columns,
                         p_.k / (kStepWords * Dot::kWord), x_.tail, own, finishing_);
    finishing_.add(own, m0, n, m1 - m0, columns);
    turn_ ^= 1;
  }

  void end() {
    tiles::settle<kPanel>(last_);
    finishing_.down_to(0);
    before_ = 0;
  }

  static constexpr int kParts = Dot::kParts;
  static constexpr bool kOfFloats = sizeof(T) == sizeof(float);
  static constexpr bool kWords = sizeof(T) * Dot::kWord == sizeof(float);
  const matrix::Problem& p_;
  const matrix::Unit& u_;
  TileScratch& x_;
  Finishing finishing_;
  PartsOf<kParts> parts_;
  float* last_ = nullptr;  // sums whose tiles have yet to be stored
  int before_ = 0;         // blocks of the last group
  int turn_ = 0;
  bool as_it_lies_ = false;  // A: tiles are read from its rows
};

// Tiles are held for one unit, in which no thread sleeps.
template <class Dot, class T> void run_tiles(const matrix::Problem& p, const matrix::Unit& u, void* scratch) {
  tiles::configure();
  TiledUnit<Dot, T>(p, u, *(TileScratch*)scratch).run();
  tiles::release();
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
