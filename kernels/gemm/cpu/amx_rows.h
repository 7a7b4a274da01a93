// SPDX-License-Identifier: MIT
// Rows that tiles read as they lie. A in runs along k: the taps of a convolution. B whose columns lie together, the weight of a linear layer, by
// at most 16 rows of A: the product of the transposes, whose sums are those of packed panels, bit for bit.
#pragma once

#include "kernels/gemm/cpu/amx_pack.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Runs along A: steps that are left of the first one, those of the others, and floats from the end of one to the next.
struct Runs {
  int left, each;
  i64 further;
  Runs from(i64 step) const { return {each - int(step % each), each, further}; }
  i64 place(i64 step, i64 floats) const { return step * floats + step / each * further; }
};
template <class T> Runs runs_of(const matrix::Problem& p) {
  const i64 bytes = sizeof(T);
  return p.a_run ? Runs{0, int(p.a_run * bytes / kLineBytes), (p.a_next - p.a_run) * bytes / 4} : Runs{0, 1 << 30, 0};
}
// Steps of even chunks, longer than those of packed rows: sums are read and written less often.
inline int chunk_of_runs(int steps) {
  constexpr int most = 18;
  const int chunks = (steps + most - 1) / most;
  return (steps + chunks - 1) / chunks;
}

// Turns rows of A from m on into those of out, as many as follow each other there. False: they are none of out's.
inline bool to_out(const matrix::Problem& p, int& m, int& rows) {
  if (p.a_wide == 0) return true;
  const int row = m / p.a_wide, pixel = m - row * p.a_wide, pixels = p.a_wide - p.a_beyond;
  const bool there = pixel < pixels;
  rows = least(rows, (there ? pixels : p.a_wide) - pixel), m -= row * p.a_beyond;
  return there;
}

constexpr int kTurnedTiles = 2, kTurnedAhead = 8;  // of B at a time; lines of a row that are asked for ahead

// Tells whether rows of B are whole tiles, and those of A lie packed at once.
template <class T, class Dot> bool is_turned(const matrix::Problem& p, i64 most_words) {
  return p.b_columns && !p.b_panels && p.k % (kStepWords * Dot::kWord) == 0 && p.k / Dot::kWord <= most_words &&
         ((i64)p.b | p.ldb * (i64)sizeof(T)) % kLineBytes == 0;
}

// Tiles of A, rows of words, become columns of them.
inline void turn_tiles(float* a, i64 steps) {
  for (float* const end = a + steps * kTileWords; a < end; a += kTileWords) {
    vf r[kLanes];
    TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) r[i] = load(a + i * kLanes);
    transpose(r);
    TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) store(a + i * kLanes, r[i]);
  }
}

// Sums of 16 kTiles rows of B, columns of out, by the turned tiles of A: to `to`, rows of B down.
template <class Dot, int kTiles, class Finishing>
TILEKILN_INLINE void turned_steps(const float* a, const char* b, long row, i64 steps, float* to, Finishing& finishing) {
  using namespace tiles;
  zero<0>();
  if constexpr (kTiles > 1) zero<1>();
  for (i64 i = 0; i < steps; ++i, a += kTileWords, b += kLineBytes) {
    TILEKILN_UNROLL(16)
    for (int r = 0; r < kTiles * kTile; ++r) __builtin_prefetch(b + r * row + kTurnedAhead * kLineBytes, 0, 2);
    load<5>(a, kLineBytes);
    load_t1<4>((const float*)b, row), Dot::template dot<0, 4, 5>();
    if constexpr (kTiles > 1) load_t1<6>((const float*)(b + kTile * row), row), Dot::template dot<1, 6, 5>();
    finishing.some();
  }
  store<0>(to, kLineBytes);
  if constexpr (kTiles > 1) store<1>(to + kTileWords, kLineBytes);
}

// Sums of `columns` rows of B from `b` on, a multiple of 16, to a panel. tail: room for those of a step.
template <class Dot, class Finishing>
void multiply_turned(const float* a, const char* b, i64 row, int columns, i64 steps, float* tail, float* sums,
                     Finishing& finishing) {
  for (int j = 0; j < columns;) {
    const bool more = columns - j >= kTurnedTiles * kTile;
    if (more)
      turned_steps<Dot, kTurnedTiles>(a, b + j * row, row, steps, tail, finishing);
    else
      turned_steps<Dot, 1>(a, b + j * row, row, steps, tail, finishing);
    for (int i = 0; i < (more ? kTurnedTiles : 1); ++i, j += kTile)
      transpose_words<float>(sums + j, (const char*)(tail + i * kTileWords), kLineBytes, false);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
