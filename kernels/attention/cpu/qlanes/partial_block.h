// A partial block: a mask edge passes through it. Every vector of queries has its own range of keys: S is computed in groups of
// keys for just the vectors that see them; mask, softmax and O go one vector at a time over its own range.
#pragma once

#include "kernels/attention/cpu/qlanes/hidden_values.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Lane i of the tile sees the block's keys [i + first, i + last] and those below sink, where they exist: [0, keys).
struct Edges {
  i64 first, last, sink;
  int keys;

  TILEKILN_INLINE int clamp(i64 key) const { return int(key < 0 ? 0 : key > keys ? keys : key); }

  // The lanes of the vector that starts at query q which see an existing key.
  TILEKILN_INLINE lane_bits lanes(int q, int key) const {
    const int begin = lane(key - last - q), end = key < sink ? kLanes : lane(key - first - q + 1);
    return lane_bits(((1u << end) - 1) & ~((1u << begin) - 1));
  }
  static TILEKILN_INLINE int lane(i64 i) { return int(i < 0 ? 0 : i > kLanes ? kLanes : i); }
};

// Keys that one vector of queries sees: some lane [begin, end), all lanes [all_begin, all_end), where no mask is needed.
// rounded_end is end rounded up to a group of keys.
struct Range {
  int begin, end, rounded_end, all_begin, all_end;

  TILEKILN_INLINE bool sees(int key) const { return key >= begin && key < rounded_end; }
  TILEKILN_INLINE bool all_see(int key) const { return key >= all_begin && key < all_end; }
  // The first key after `key`, and before `limit`, where one of the two changes.
  TILEKILN_INLINE int change(int key, int limit) const {
    const int borders[] = {begin, rounded_end, all_begin, all_end};
    for (const int border : borders) limit = border > key && border < limit ? border : limit;
    return limit;
  }
};

constexpr int kKeyGroup = 4;

TILEKILN_INLINE Range range_of(const Edges& edges, int q, bool needs_stage) {
  constexpr int R = kKeyGroup;
  Range r;
  r.begin = edges.sink > 0 ? 0 : edges.clamp(q + edges.first) / R * R;
  r.end = edges.clamp(q + kLanes + edges.last);
  r.rounded_end = r.end > r.begin ? round_up(r.end, R) : r.begin;
  r.all_begin = round_up(edges.clamp(q + kLanes - 1 + edges.first), R);
  r.all_end = edges.clamp(q + edges.last + 1) / R * R;
  // A stage changes the scores afterwards, so their maximum is taken with the mask, which then must visit every key.
  if (edges.sink > 0 || needs_stage || r.all_end < r.all_begin) r.all_end = r.all_begin = r.begin;
  return r;
}

template <class Compute> void partial_block(const Block& b, int vectors, const Edges& edges) {
  Scratch& w = b.scratch;
  State& state = b.state;
  const int keys = b.keys.count;
  const vf c = broadcast(b.c);
  Range range[kVectors];
  vf maximum[kVectors];
  for (int j = 0; j < vectors; ++j) {
    range[j] = range_of(edges, j * kLanes, b.stage != nullptr);
    maximum[j] = state.m[j];
  }

  b.copy.run();
  b.fetch_q.fetch(0, kTileQ);
  b.fetch_out.fetch<1>(0, kTileQ);

  // S = K Q^T, in runs of keys that the same vectors see. The maximum is taken here only where no lane is masked. Scores
  // past the last key are masked below.
  for (int key = 0, run_end; key < keys; key = run_end) {
    int begin = 0, end = vectors;
    run_end = round_up(keys, kKeyGroup);
    for (int j = 0; j < vectors; ++j) run_end = range[j].change(key, run_end);
    while (begin < end && !range[begin].sees(key)) ++begin;
    while (begin < end && !range[end - 1].sees(key)) --end;
    vector_groups(begin, end, [&]<int N>(int j) __attribute__((always_inline)) {
      vf top[N];
      TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) top[i] = broadcast(-kInfinity);
      score_block<Compute, N>(b.keys, key, run_end < keys ? run_end : keys, b.q_words, w.q + j * kLanes,
                              w.s + j * kLanes, top);
      for (int i = 0; i < N; ++i) {
        if (range[j + i].all_see(key)) maximum[j + i] = max(maximum[j + i], top[i]);
      }
    });
  }

  const int v_words = (keys + Compute::kWord - 1) / Compute::kWord;
  const bool finite = all_finite<Compute>(b.v, v_words, b.o_rows);
  const ValueRows v = finite ? b.v : HiddenValues::cleaned<Compute>(b, v_words);

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
    const auto mask = [&](int begin, int end) {
      for (int key = begin; key < end; ++key) {
        float* s = w.s + key * kTileQ + q;
        const vf x = select(key < keys ? edges.lanes(q, key) : lane_bits(0), load(s), broadcast(-kInfinity));
        store(s, x);
        m = max(m, x);
      }
    };
    mask(r.begin, r.all_begin);
    mask(r.all_end, r.rounded_end);

    // P = 2^(c (S - m))
    vf alpha;
    const bool far = is_far(m, c);
    const vf cm = raise_maximum(state.m[j], state.l[j], alpha, m, c, far), factor = far ? broadcast(1.f) : c;
    if (far) subtract_maximum(w.s, j, j + 1, r.begin, r.rounded_end, state.m, c);
    if (b.altered)
      probabilities<Compute, true, 1>(w.s, j, r.begin, r.rounded_end, factor, &cm, state.l + j, b.alteration);
    else
      probabilities<Compute, false, 1>(w.s, j, r.begin, r.rounded_end, factor, &cm, state.l + j, b.alteration);

    // O = alpha O + V^T P
    const int words_begin = r.begin / Compute::kWord, words_end = (r.end + Compute::kWord - 1) / Compute::kWord;
    const bool started = state.start(j, j + 1, w.o, b.o_rows);
    value_block<Compute, 1>(w.s + q, v, words_begin, words_end, w.o + q, b.o_rows, started ? &alpha : nullptr);
    if (!finite) {
      HiddenValues::add<Compute>(b, q, words_begin, words_end,
                                 [&](int key) { return key < keys ? edges.lanes(q, key) : lane_bits(0); });
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
