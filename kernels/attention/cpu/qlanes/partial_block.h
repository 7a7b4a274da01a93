// SPDX-License-Identifier: MIT
// A partial block: a mask edge passes through it. Every vector of queries has its own range of keys: S is computed in groups of
// keys for just the vectors that see them; mask and softmax go one vector at a time over its own range, O two at a time.
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
    return lane_bits(between(lane(key - last - q), key < sink ? kLanes : lane(key - first - q + 1)));
  }
  static TILEKILN_INLINE int between(int begin, int end) { return ((1 << end) - 1) & ~((1 << begin) - 1); }
  template <class Int> static TILEKILN_INLINE int lane(Int i) { return int(i < 0 ? 0 : i > kLanes ? kLanes : i); }
};

// Seen lanes of every key of a block: without a sink they depend on key - query alone, so they are made together. Made one by one they
// took a tenth of the block (bf16, D = 64, causal); the backward's blocks, which use few, gain nothing.
class SeenLanes {
 public:
  static constexpr bool kOwn = false;
  explicit SeenLanes(const Edges& edges, const lane_bits* = nullptr) : edges_(edges) {
    const int first = near(edges.first), last = near(edges.last);
    for (int i = 0; i < kPlaces; ++i)
      lanes_[i] = Edges::between(Edges::lane(i - kLastVector - last), Edges::lane(i - kLastVector - first + 1));
  }

  // None beyond the last key.
  TILEKILN_INLINE lane_bits of(int q, int key) const {
    if (key >= edges_.keys) return 0;
    return key < edges_.sink ? edges_.lanes(q, key) : lane_bits(lanes_[key - q + kLastVector]);
  }

 private:
  static constexpr int kLastVector = kTileQ - kLanes, kPlaces = kLastVector + kTileK;
  static constexpr int kOutside = kTileQ + kTileK;  // farther than a key of the block is from a query of the tile

  static int near(i64 key) { return int(key < -kOutside ? -kOutside : key > kOutside ? kOutside : key); }

  const Edges edges_;
  int lanes_[kPlaces];  // by key - q
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

// Lanes that an operator's own mask shows as well.
class OwnLanes {
 public:
  static constexpr bool kOwn = true;
  OwnLanes(const Edges& edges, const lane_bits* own) : seen_(edges), own_(own) {}
  TILEKILN_INLINE lane_bits of(int q, int key) const { return seen_.of(q, key) & own_[q / kLanes * kTileK + key]; }
  // Range of the vector from query q without the keys before the first and past the last that it shows.
  TILEKILN_INLINE void narrow(Range& r, int q) const {
    int begin = r.begin, end = r.end;
    while (begin < end && !of(q, begin)) ++begin;
    while (begin < end && !of(q, end - 1)) --end;
    r.begin = r.all_begin = r.all_end = begin / kKeyGroup * kKeyGroup;
    r.end = end;
    r.rounded_end = begin < end ? round_up(end, kKeyGroup) : r.begin;
  }

 private:
  const SeenLanes seen_;
  const lane_bits* own_;
};

template <class Compute, class Lanes = SeenLanes, bool Weighs = false>
void partial_block(const Block& b, int vectors, const Edges& edges) {
  Scratch& w = b.scratch;
  State& state = b.state;
  const int keys = b.keys.count;
  const vf c = broadcast(b.c);
  const Lanes lanes(edges, w.keep);
  Range range[kVectors];
  vf maximum[kVectors];
  for (int j = 0; j < vectors; ++j) {
    range[j] = range_of(edges, j * kLanes, Lanes::kOwn || b.stage != nullptr);
    if constexpr (Lanes::kOwn) lanes.narrow(range[j], j * kLanes);
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

  vf alpha[kVectors];
  const auto is_seen = [&](int j) { return range[j].rounded_end > range[j].begin; };
  const auto words_begin = [&](int j) { return range[j].begin / Compute::kWord; };
  const auto words_end = [&](int j) { return (range[j].end + Compute::kWord - 1) / Compute::kWord; };
  for (int j = 0; j < vectors; ++j) {
    if (!is_seen(j)) continue;
    const Range& r = range[j];
    const int q = j * kLanes;
    if (b.stage) {
      vf unmasked[kVectors];
      unmasked[j] = maximum[j];
      b.stage(w.s, j, j + 1, r.begin, r.rounded_end, unmasked, b.score);
    }

    // s = -inf where masked, a weight 0
    vf m = maximum[j];
    const auto mask = [&](int begin, int end) {
      for (int key = begin; key < end; ++key) {
        float* s = w.s + key * kTileQ + q;
        const vf x = select(lanes.of(q, key), load(s), Weighs ? zero() : broadcast(-kInfinity));
        store(s, x);
        m = max(m, x);
      }
    };
    mask(r.begin, r.all_begin);
    mask(r.all_end, r.rounded_end);

    // P = 2^(c (S - m))
    const bool far = !Weighs && is_far(m, c);
    if (Weighs) alpha[j] = broadcast(1.f);
    const vf cm = Weighs ? zero() : raise_maximum(state.m[j], state.l[j], state.shift[j], alpha[j], m, c, far);
    const vf factor = far ? broadcast(1.f) : c;
    if (far) subtract_maximum(w.s, j, j + 1, r.begin, r.rounded_end, state.m, c);
    if (b.altered)
      probabilities<Compute, true, 1, Weighs>(w.s, j, r.begin, r.rounded_end, factor, &cm, state.l + j, b.alteration);
    else
      probabilities<Compute, false, 1, Weighs>(w.s, j, r.begin, r.rounded_end, factor, &cm, state.l + j, b.alteration);
  }

  // O = alpha O + V^T P, for two vectors at a time where their keys overlap or touch: 0.94-0.95 of the block's time in fp32
  for (int j = 0, count; j < vectors; j += count) {
    count = 1;
    if (!is_seen(j)) continue;
    const bool pair =
        j + 1 < vectors && is_seen(j + 1) && words_begin(j) <= words_end(j + 1) && words_begin(j + 1) <= words_end(j);
    if (pair) count = 2;
    const bool started = state.start(j, j + count, w.o, b.o_rows);
    const float* const p = w.s + j * kLanes;
    float* const o = w.o + j * kLanes;
    const vf* const factor = started ? alpha + j : nullptr;
    if (pair)
      value_pair<Compute>(p, v, {words_begin(j), words_begin(j + 1)}, {words_end(j), words_end(j + 1)}, o, b.o_rows,
                          factor);
    else
      value_block<Compute, 1>(p, v, words_begin(j), words_end(j), o, b.o_rows, factor);
  }
  if (!finite) {
    for (int j = 0; j < vectors; ++j) {
      if (!is_seen(j)) continue;
      HiddenValues::add<Compute>(b, j * kLanes, words_begin(j), words_end(j),
                                 [&](int key) { return lanes.of(j * kLanes, key); });
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
