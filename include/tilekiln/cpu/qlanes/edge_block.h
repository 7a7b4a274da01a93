// A block through which a mask edge passes. Every vector of queries has its own range of keys: S is computed in groups of
// keys for just the vectors that see them; mask, softmax and O go one vector at a time over its own range.
#pragma once

#include "tilekiln/cpu/microkernel.h"
#include "tilekiln/cpu/qlanes/block.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Lane i of the tile sees the block's keys [i + first, i + last] and those below sink, where they exist: [0, keys).
struct Edges {
  i64 first, last, sink;
  int keys;

  TILEKILN_INLINE int clamp(i64 key) const { return int(key < 0 ? 0 : key > keys ? keys : key); }

  // The lanes of the vector that starts at query q which see `key`.
  TILEKILN_INLINE lane_bits lanes(int q, i64 key) const {
    i64 begin = key - last - q, end = key < sink ? kLanes : key - first - q + 1;
    begin = begin < 0 ? 0 : begin > kLanes ? kLanes : begin;
    end = end < 0 ? 0 : end > kLanes ? kLanes : end;
    if (key >= keys || end <= begin) return 0;
    return lane_bits(((1u << end) - 1) & ~((1u << begin) - 1));
  }
};

template <class Compute> void edge_block(const Block& b, int vectors, const Edges& edges) {
  constexpr int R = 4;  // keys in a group
  Scratch& w = b.scratch;
  State& state = b.state;
  const vf c = broadcast(b.c);

  // Some lane sees [begin, end), rounded_end is end rounded up; all lanes see [all_begin, all_end), so no mask is needed there.
  struct Range { int begin, end, rounded_end, all_begin, all_end; } range[kVectors];
  vf maximum[kVectors];
  for (int j = 0; j < vectors; ++j) {
    Range& r = range[j];
    const i64 q = j * kLanes;
    r.begin = edges.sink > 0 ? 0 : edges.clamp(q + edges.first) / R * R;
    r.end = edges.clamp(q + kLanes + edges.last);
    r.rounded_end = round_up(r.end, R);
    if (r.end <= r.begin) r.rounded_end = r.begin;
    r.all_begin = round_up(edges.clamp(q + kLanes - 1 + edges.first), R);
    r.all_end = edges.clamp(q + edges.last + 1) / R * R;
    if (edges.sink > 0 || b.stage || r.all_end < r.all_begin) r.all_end = r.all_begin = r.begin;
    maximum[j] = state.m[j];
  }

  // S = K Q^T; the maximum is taken here only where no lane is masked. Keys past the end repeat the last one and are masked.
  for (int key = 0; key < edges.keys; key += R) {
    int begin = 0, end = vectors;
    while (begin < end && key >= range[begin].rounded_end) ++begin;
    while (begin < end && key < range[end - 1].begin) --end;
    const char* k[R];
    for (int r = 0; r < R; ++r) k[r] = b.k + (key + r < edges.keys ? key + r : edges.keys - 1) * b.k_stride;
    vector_groups(begin, end, [&]<int N>(int j) __attribute__((always_inline)) {
      vf group[N];
      for (int i = 0; i < N; ++i) group[i] = broadcast(-kInfinity);
      score_rows<Compute, R, N>(k, b.q_words, w.q + j * kLanes, w.s + key * kTileQ + j * kLanes, group);
      for (int i = 0; i < N; ++i) {
        if (key >= range[j + i].all_begin && key < range[j + i].all_end) maximum[j + i] = max(maximum[j + i], group[i]);
      }
    });
  }

  for (int j = 0; j < vectors; ++j) {
    const Range& r = range[j];
    const int q = j * kLanes;
    if (r.rounded_end <= r.begin) continue;
    if (b.stage) {
      vf unmasked[kVectors];
      unmasked[j] = maximum[j];
      b.stage(w.s, j, j + 1, r.begin, r.rounded_end, unmasked, b.score);
    }

    // s = -inf where masked
    vf m = maximum[j];
    for (int key = r.begin; key < r.rounded_end; ++key) {
      if (key == r.all_begin && r.all_end > key) {
        key = r.all_end - 1;
        continue;
      }
      float* s = w.s + key * kTileQ + q;
      const vf x = select(edges.lanes(q, key), load(s), broadcast(-kInfinity));
      store(s, x);
      m = max(m, x);
    }

    // P = 2^(c S - c m)
    vf alpha;
    const vf cm = raise_maximum(state.m[j], state.l[j], alpha, m, c);
    if (b.altered) probabilities<Compute, true, 1>(w.s, j, r.begin, r.rounded_end, c, &cm, state.l + j, b.alteration);
    else probabilities<Compute, false, 1>(w.s, j, r.begin, r.rounded_end, c, &cm, state.l + j, b.alteration);

    // O = alpha O + V^T P
    const int words_begin = r.begin / Compute::kWord, words_end = (r.end + Compute::kWord - 1) / Compute::kWord;
    const bool started = state.start(j, j + 1, w.o, b.o_rows);
    value_block<Compute, 1>(w.s + q, b.v, b.v_stride, words_begin, words_end, w.o + q, b.o_rows, started ? &alpha : nullptr);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
