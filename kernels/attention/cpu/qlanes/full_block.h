// SPDX-License-Identifier: MIT
// A full block: its queries all see the same keys, no mask edge passes through it. It may be short of keys (the last
// block of a sequence) or of queries (its last tile); then it costs that much less and needs no mask.
#pragma once

#include "kernels/attention/cpu/qlanes/block.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

template <class Compute, bool Weighs = false> void full_block(const Block& b, int vectors) {
  const int keys = b.keys.count;
  Scratch& w = b.scratch;
  State& state = b.state;
  vf maximum[kVectors], alpha[kVectors], cm[kVectors];

  // S = K Q^T
  for (int j = 0; j < vectors; ++j) maximum[j] = state.m[j];
  vector_groups(0, vectors, [&]<int N>(int j) __attribute__((always_inline)) {
    score_block<Compute, N>(b.keys, 0, keys, b.q_words, w.q + j * kLanes, w.s + j * kLanes, maximum + j,
                            [&](int first, int last) __attribute__((always_inline)) {
                              if (j != 0) return;
                              b.fetch_v.fetch(first, last);
                              b.fetch_q.fetch(first, last);
                            });
  });
  b.copy.run();
  if (b.stage) {
    for (int j = 0; j < vectors; ++j) maximum[j] = state.m[j];
    b.stage(w.s, 0, vectors, 0, keys, maximum, b.score);
  }

  // P = 2^(c (S - m))
  vf c = broadcast(b.c);
  bool far = false;
  for (int j = 0; j < vectors && Weighs; ++j) alpha[j] = broadcast(1.f);
  for (int j = 0; j < vectors && !Weighs; ++j) far |= is_far(maximum[j], c);
  for (int j = 0; j < vectors && !Weighs; ++j)
    cm[j] = raise_maximum(state.m[j], state.l[j], state.shift[j], alpha[j], maximum[j], c, far);
  if (far) {
    subtract_maximum(w.s, 0, vectors, 0, keys, state.m, c);
    c = broadcast(1.f);
  }
  vector_groups(0, vectors, [&]<int N>(int j) __attribute__((always_inline)) {
    if (b.altered)
      probabilities<Compute, true, N, Weighs>(w.s, j, 0, keys, c, cm + j, state.l + j, b.alteration);
    else
      probabilities<Compute, false, N, Weighs>(w.s, j, 0, keys, c, cm + j, state.l + j, b.alteration);
  });

  // O = alpha O + V^T P
  const int words = (keys + Compute::kWord - 1) / Compute::kWord;
  const bool started = state.start(0, vectors, w.o, b.o_rows);
  if constexpr (kSquares<Compute>) {
    if (!b.v.runs) make_squares(w.s, words, vectors);
  }
  vector_groups(0, vectors, [&]<int N>(int j) __attribute__((always_inline)) {
    every_value<Compute, N>(w.s + j * kLanes, b.v, 0, words, w.o + j * kLanes, b.o_rows, started ? alpha + j : nullptr,
                            [&](int first, int last) __attribute__((always_inline)) {
                              if (j != 0) return;
                              const int begin = first * kTileK / b.o_rows, end = last * kTileK / b.o_rows;
                              b.fetch_k.fetch(begin, end);
                              b.fetch_out.fetch<1>(begin, end);
                            });
  });
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
