// SPDX-License-Identifier: MIT
// Full and partial blocks of qlanes whose two products are tiles: S^T = K Q^T and O^T += V^T P^T, by blocks of 32 keys, or head dims, and
// 32 queries. Scores, masks and probabilities are those of qlanes, between the two; Q^T and P^T lie there as tiles take them.
#pragma once

#include "kernels/attention/cpu/qlanes/full_block.h"
#include "kernels/attention/cpu/qlanes/partial_block.h"
#include "kernels/attention/cpu/qtiles/storage.h"
#include "kernels/backends/cpu/amx/block.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// A maximum is raised where scores are above it by this power of 2: P then stays below 2^8 and sums below any limit, and O is
// seldom multiplied anew.
constexpr float kSlack = 8;

// S of the keys [begin, end), multiples of 32, and of the vectors j and j + 1. Those that have no queries get what their lanes hold.
TILEKILN_INLINE void score_tiles(const Block& b, int j, int begin, int end, float*& last) {
  Scratch& w = b.scratch;
  const int steps = (b.q_words + 15) / 16;
  const long row = b.keys.stride;
  for (int key = begin; key < end; key += kGroupKeys) {
    float* const s = w.s + key * kTileQ + j * kLanes;
    tiles::multiply_block<kTileQ>({(const float*)(b.keys.base + key * row), row, 16 * row / 4, 16},
                                  queries_side(w.q, j), steps, nullptr, last);
    last = s;
  }
}

// O of the vectors j and j + 1, over the words [0, words) of P. started: O holds something.
TILEKILN_INLINE void value_tiles(const Block& b, int j, int words, bool started, float*& last) {
  Scratch& w = b.scratch;
  for (int d = 0; d < b.o_rows; d += 32) {
    float* const o = w.o + d * kTileQ + j * kLanes;
    tiles::multiply_block<kTileQ>(
        {value_tile((float*)b.v.base, d, 0), tiles::kLineBytes, 2 * tiles::kTileWords, tiles::kTileWords},
        queries_side(w.s, j), (words + 15) / 16, started ? o : nullptr, last);
    last = o;
  }
}

TILEKILN_INLINE void clear_words(float* s, int j, int begin, int end) {
  for (int w = begin; w < end; ++w) store(s + w * kTileQ + j * kLanes, zero());
}

// raise_maximum where `maximum` is above m by more than the slack. Whether it is: then O, where it holds something, is multiplied.
TILEKILN_INLINE bool raise_seldom(const Block& b, int j, vf maximum, vf c, bool far, vf& cm) {
  State& state = b.state;
  if (!far && !any_above(sub(mul(maximum, c), state.shift[j]), broadcast(kSlack))) {
    cm = state.shift[j];
    return false;
  }
  vf alpha;
  cm = raise_maximum(state.m[j], state.l[j], state.shift[j], alpha, maximum, c, far);
  if (!state.started[j]) return true;
  float* o = b.scratch.o + j * kLanes;
  for (int d = 0; d < b.o_rows; ++d, o += kTileQ) store(o, mul(load(o), alpha));
  return true;
}

template <> inline void full_block<ComputeTiles>(const Block& b, int vectors) {
  const int keys = b.keys.count, pairs = round_up(vectors, 2);
  Scratch& w = b.scratch;
  State& state = b.state;
  vf maximum[kVectors], cm[kVectors];

  // S = K Q^T
  b.copy.run();
  tiles::fence();
  float* last = nullptr;
  for (int j = 0; j < pairs; j += 2) score_tiles(b, j, 0, round_up(keys, kGroupKeys), last);
  tiles::settle<kTileQ>(last);
  b.fetch_k.fetch(0, kTileK);
  b.fetch_q.fetch(0, kTileQ);
  b.fetch_out.fetch<1>(0, kTileQ);
  for (int j = 0; j < vectors; ++j) maximum[j] = state.m[j];
  if (b.stage) {
    b.stage(w.s, 0, vectors, 0, keys, maximum, b.score);
  } else {
    vector_groups(0, vectors, [&]<int N>(int j) __attribute__((always_inline)) {
      vf top[N];
      TILEKILN_UNROLL(4) for (int i = 0; i < N; ++i) top[i] = maximum[j + i];
      TILEKILN_UNROLL(4) for (int key = 0; key < keys; ++key) {
        TILEKILN_UNROLL(4)
        for (int i = 0; i < N; ++i) top[i] = max(top[i], load(w.s + key * kTileQ + (j + i) * kLanes));
      }
      TILEKILN_UNROLL(4) for (int i = 0; i < N; ++i) maximum[j + i] = top[i];
    });
  }

  // P = 2^(c (S - m))
  vf c = broadcast(b.c);
  bool far = false;
  for (int j = 0; j < vectors; ++j) far |= is_far(maximum[j], c);
  for (int j = 0; j < vectors; ++j) raise_seldom(b, j, maximum[j], c, far, cm[j]);
  if (far) {
    subtract_maximum(w.s, 0, vectors, 0, keys, state.m, c);
    c = broadcast(1.f);
  }
  vector_groups(0, vectors, [&]<int N>(int j) __attribute__((always_inline)) {
    if (b.altered)
      probabilities<ComputeTiles, true, N>(w.s, j, 0, keys, c, cm + j, state.l + j, b.alteration);
    else
      probabilities<ComputeTiles, false, N>(w.s, j, 0, keys, c, cm + j, state.l + j, b.alteration);
  });
  const int words = (keys + 1) / 2;
  for (int j = 0; j < pairs; ++j) clear_words(w.s, j, words, round_up(words, 16));

  // O = O + V^T P
  tiles::fence();
  const bool started = state.start(0, vectors, w.o, b.o_rows);
  for (int j = 0; j < pairs; j += 2) value_tiles(b, j, words, started, last);
  tiles::settle<kTileQ>(last);
}

template <> inline void partial_block<ComputeTiles>(const Block& b, int vectors, const Edges& edges) {
  Scratch& w = b.scratch;
  State& state = b.state;
  const int keys = b.keys.count, pairs = round_up(vectors, 2);
  const vf c = broadcast(b.c);
  b.copy.run();
  // A masked key's V may be no number, which its P of 0 must not meet: qlanes knows how.
  if (!all_finite_tiles(b.v.base, b.o_rows)) {
    alignas(64) float rows[kBlockWords * kMaxHdim];
    rows_of_tiles(rows, b.v.base, b.o_rows);
    Block other = b;
    other.copy.load = nullptr;
    other.v = {rows, v_copy_stride(b.o_rows)};
    return partial_block<ComputeBf16>(other, vectors, edges);
  }
  b.fetch_q.fetch(0, kTileQ);
  b.fetch_out.fetch<1>(0, kTileQ);

  const SeenLanes lanes(edges);
  Range range[kVectors];
  for (int j = 0; j < vectors; ++j) range[j] = range_of(edges, j * kLanes, true);
  const auto is_seen = [&](int j) { return j < vectors && range[j].rounded_end > range[j].begin; };

  // S = K Q^T, of groups of keys that one of two vectors sees.
  tiles::fence();
  float* last = nullptr;
  for (int j = 0; j < pairs; j += 2) {
    int begin = kTileK, end = 0;
    for (int i = j; i < j + 2; ++i) {
      if (!is_seen(i)) continue;
      begin = range[i].begin < begin ? range[i].begin : begin;
      end = range[i].rounded_end > end ? range[i].rounded_end : end;
    }
    if (end > begin) score_tiles(b, j, begin / kGroupKeys * kGroupKeys, round_up(end, kGroupKeys), last);
  }
  tiles::settle<kTileQ>(last);

  const int words = (keys + 1) / 2;
  for (int j = 0; j < pairs; ++j) {
    if (!is_seen(j)) {
      if (is_seen(j ^ 1)) clear_words(w.s, j, 0, round_up(words, 16));
      continue;
    }
    const Range& r = range[j];
    const int q = j * kLanes;
    if (b.stage) {
      vf unmasked[kVectors];
      unmasked[j] = state.m[j];
      b.stage(w.s, j, j + 1, r.begin, r.rounded_end, unmasked, b.score);
    }
    // s = -inf where masked
    vf m = state.m[j], cm;
    for (int key = r.begin; key < r.rounded_end; ++key) {
      float* const s = w.s + key * kTileQ + q;
      const vf x = select(lanes.of(q, key), load(s), broadcast(-kInfinity));
      store(s, x);
      m = max(m, x);
    }
    // P = 2^(c (S - m))
    const bool far = is_far(m, c);
    raise_seldom(b, j, m, c, far, cm);
    const vf factor = far ? broadcast(1.f) : c;
    if (far) subtract_maximum(w.s, j, j + 1, r.begin, r.rounded_end, state.m, c);
    if (b.altered)
      probabilities<ComputeTiles, true, 1>(w.s, j, r.begin, r.rounded_end, factor, &cm, state.l + j, b.alteration);
    else
      probabilities<ComputeTiles, false, 1>(w.s, j, r.begin, r.rounded_end, factor, &cm, state.l + j, b.alteration);
    clear_words(w.s, j, 0, r.begin / 2);
    clear_words(w.s, j, r.rounded_end / 2, kBlockWords);
  }

  // O = O + V^T P
  tiles::fence();
  for (int j = 0; j < pairs; j += 2) {
    if (!is_seen(j) && !is_seen(j + 1)) continue;
    const bool started = state.start(j, j + 2 < vectors ? j + 2 : vectors, w.o, b.o_rows);
    value_tiles(b, j, words, started, last);
  }
  tiles::settle<kTileQ>(last);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
