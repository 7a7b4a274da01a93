// SPDX-License-Identifier: MIT
// A pass: 32 queries against all the keys that they see, in groups of 32. While tiles multiply Q by K^T of the next group, and P of the
// block before by V, vectors make P of this group, some rows of it between each four products: each has units of its own.
//
// The maximum of a row is that of the first group in which it sees a key, kept until a power exceeds 2^60: then the block of four groups
// is done again, with a maximum that it has. So O is seldom multiplied, and no score is read twice.
#pragma once

#include "kernels/attention/cpu/qtiles/groups.h"
#include "kernels/attention/cpu/qtiles/scores.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kBlockGroups = 4;                // of keys, for which O enters its tiles once
constexpr int kRoom = 60;                      // the power of 2 up to which a maximum is kept
constexpr int kHighest = (kRoom + 127) * 128;  // its bits
constexpr float kNoShift = -0x1p22f;           // of a row that has seen no key: any score is above it by more than that

// Scratch of a pass. With Q and O of 128 head dims as much as L1: tiles of K and V are read around it.
struct PassScratch {
  alignas(64) float s[2][kPassRows * kGroupKeys];  // tiles of scores: [2][2] of queries and keys
  alignas(64) float p[2][kBlockGroups * kTwoTiles];
  alignas(64) float q[kPassRows * kMaxHdim / 2];
  alignas(64) float o[kPassRows * kMaxHdim];  // [hdim / 32][2][2]: of queries, and of head dims
  vf l[kPassRows], block_l[kPassRows];        // sums of each row; those before the block
  float base[kPassRows], shift[kPassRows];    // of the powers; fl(c m)
  alignas(64) float again[kBlockGroups * kPassRows * kGroupKeys];
  alignas(64) uint16_t keep[2 * kBlockGroups][2 * kGroupKeys];  // bits of a group, by its number
  unsigned odd;                                                 // bits where a logit is far or no number
};

// Row i sees the keys [i + first, i + last], and up to i + last those below sink, where they exist: below `keys`.
struct Sight {
  i64 first, last, sink, keys;

  // A bit for each of the 32 keys from `key`.
  TILEKILN_INLINE uint32_t row(int i, i64 key) const {
    const i64 end = i + last + 1 < keys ? i + last + 1 : keys;
    return below(end - key) & (~below(i + first - key) | below(sink - key));
  }
  // True where every row of a pass sees the 32 keys from `key`.
  TILEKILN_INLINE bool whole(i64 key) const {
    const i64 end = key + kGroupKeys;
    return end <= keys && end <= last + 1 && (kPassRows - 1 + first <= key || end <= sink);
  }
  static TILEKILN_INLINE uint32_t below(i64 n) { return n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1; }
};

// The groups of keys of a pass, and where their tiles lie: in blocks of two groups, by the number of the block.
struct Groups {
  const float* room;
  i64 block_words, key_words;  // of a block, its K first
  int k_group, v_group;        // words of a group
  i64 near_begin, begin;       // keys below the sink, which come first, and the others
  int near, count;             // groups: below the sink, an even number; all

  TILEKILN_INLINE i64 key(int g) const {
    return g < near ? near_begin + g * i64(kGroupKeys) : begin + (g - near) * i64(kGroupKeys);
  }
  TILEKILN_INLINE const float* k(int g) const { return block(g) + g % 2 * k_group; }
  TILEKILN_INLINE const float* v(int g) const { return block(g) + key_words + g % 2 * v_group; }

 private:
  TILEKILN_INLINE const float* block(int g) const { return room + key(g - g % 2) / kTileK * block_words; }
};

template <class Powers, class Scores> class Pass {
 public:
  Pass(PassScratch& w, const Groups& groups, const Sight& sight, float c, int k_steps, int o_pairs,
       const Scores& logits)
      : w_(w), groups_(groups), sight_(sight), c_(c), k_steps_(k_steps), o_pairs_(o_pairs), logits_(logits) {}

  // first_shift, first_sum: of a sink logit in log2 units, a key whose V is 0; kNoShift and 0 where there is none.
  // kSteps, kPairs: words of q and head dims of v, in 32s; 0: any.
  template <int kSteps, int kPairs> void run(float first_shift, float first_sum) {
    // Copies: what the tile words do to memory makes compilers read everything else again.
    PassScratch& w = w_;
    const Groups groups = groups_;
    const Sight sight = sight_;
    const Scores logits = logits_;
    w.odd = 0;
    const int k_steps = kSteps ? kSteps : k_steps_, o_pairs = kPairs ? kPairs : o_pairs_;
    const int count = groups.count, blocks = (count + kBlockGroups - 1) / kBlockGroups;
    for (int i = 0; i < kPassRows; ++i) {
      shift(i, first_shift);
      w.l[i] = select(1, broadcast(first_sum), zero());
    }
    if (count == 0) {
      for (int i = 0; i < o_pairs * kPassRows * 32; i += 16) store(w.o + i, zero());
      return;
    }
    float* last = nullptr;
    tiles::fence();
    scores(w.q, groups.k(0), k_steps, w.s[0], last, [] {});
    tiles::settle(last);
    if (first_sum == 0) first_maxima(k_steps);

    const vf factor = broadcast(Powers::factor(Scores::kPlain ? c_ : 1.f));
    const Powers powers;
    for (int j = 0; j <= blocks; ++j) {
      const int here = j < blocks ? of_block(j) : 0, before = j > 0 ? of_block(j - 1) : 0;
      for (int i = 0; i < kPassRows; ++i) w.block_l[i] = w.l[i];
      vh top = zero_halves();
      for (int g = 0; g < kBlockGroups; ++g) {
        const int group = j * kBlockGroups + g;
        const bool more = g < here && group + 1 < count;
        const int pair_end = j > 0 ? (g + 1) * o_pairs / kBlockGroups : 0;
        int pair = j > 0 ? g * o_pairs / kBlockGroups : 0;
        const int steps = (more ? k_steps : 0) + (pair_end - pair) * before;
        const int each = steps > 0 ? round_up((kPassRows + steps - 1) / steps, 2) : kPassRows;
        const float* const s = w.s[group % 2];
        float* const p = w.p[j % 2] + g * kTwoTiles;
        const i64 key = g < here ? groups.key(group) : 0;
        const bool masked = g < here && !sight.whole(key);
        u64 row = g < here ? 0 : kPassRows;
        uint16_t* keep = nullptr;
        if constexpr (!Scores::kPlain) {
          if (g < here && logits.drops()) logits.keep(keep = w.keep[group % (2 * kBlockGroups)], key);
        }
        const auto work = [&](u64 rows) __attribute__((always_inline)) {
          const u64 end = row + rows < kPassRows ? row + rows : kPassRows;
          if (masked) {
            for (; row < end; ++row)
              top = probabilities(powers, logits, w, s, p, row, key, sight.row(int(row), key), factor, top, keep);
          } else {
            for (; row < end; row += 2) {
              top = probabilities(powers, logits, w, s, p, row, key, factor, top, keep);
              top = probabilities(powers, logits, w, s, p, row + 1, key, factor, top, keep);
            }
          }
        };
        const auto beside = [&]() __attribute__((always_inline)) { work(each); };
        if (more)
          scores(w.q, groups.k(group + 1), k_steps, w.s[(group + 1) % 2], last, beside);
        else
          tiles::settle(last);
        for (; pair < pair_end; ++pair) values(w, groups, j - 1, before, pair, last, beside);
        work(kPassRows);
        tiles::fence();
      }
      if (any_higher(top, kHighest)) {
        tiles::settle(last);
        again(j, here, k_steps, o_pairs);
      }
    }
    tiles::settle(last);
  }

 private:
  int of_block(int j) const {
    const int left = groups_.count - j * kBlockGroups;
    return left < kBlockGroups ? left : kBlockGroups;
  }

  void shift(int i, float to) {
    w_.shift[i] = to;
    w_.base[i] = Powers::base(to);
  }

  // The first vector of scores of a row.
  static TILEKILN_INLINE const float* row_of(const float* s, u64 i) { return s + 16 * (i + (i & 16)); }

  template <class Beside>
  static TILEKILN_INLINE void scores(const float* q, const float* k, int steps, float* s, float*& last,
                                     Beside&& beside) {
    product(q, kTwoTiles, k, kTwoTiles, steps, nullptr, last, beside);
    last = s;
  }

  // O of two tiles of head dims, over the P of block j.
  template <class Beside>
  static TILEKILN_INLINE void values(PassScratch& w, const Groups& groups, int j, int count, int pair, float*& last,
                                     Beside&& beside) {
    float* const o = w.o + pair * 2 * kTwoTiles;
    const float* v[kBlockGroups];
    for (int g = 0; g < count; ++g) v[g] = groups.v(j * kBlockGroups + g) + pair * kTwoTiles;
    product_of(
        w.p[j % 2], kTwoTiles, [&](int i) __attribute__((always_inline)) { return v[i]; }, count, j > 0 ? o : nullptr,
        last, beside);
    last = o;
  }

  template <class Beside>
  static TILEKILN_INLINE void product(const float* a, i64 a_step, const float* b, i64 b_step, int steps,
                                      const float* from, float* last, Beside&& beside) {
    product_of(
        a, a_step, [&](int i) __attribute__((always_inline)) { return b + i * b_step; }, steps, from, last, beside);
  }

  // 32 x 32 sums, from 0 or from `from`. Those of the block before leave their tiles one after the other.
  template <class B, class Beside>
  static TILEKILN_INLINE void product_of(const float* a, i64 a_step, B&& b, int steps, const float* from, float* last,
                                         Beside&& beside) {
    using namespace tiles;
    const float* at = b(0);
    load<4>(a, kLineBytes), load_t1<6>(at, kLineBytes);
    leave<0>(last), enter<0>(from), dot_bf16<0, 4, 6>();
    load_t1<7>(at + kTileWords, kLineBytes);
    leave<1>(last), enter<1>(from), dot_bf16<1, 4, 7>();
    load<5>(a + kTileWords, kLineBytes);
    leave<2>(last), enter<2>(from), dot_bf16<2, 5, 6>();
    leave<3>(last), enter<3>(from), dot_bf16<3, 5, 7>();
    beside();
    TILEKILN_UNROLL(4) for (int i = 1; i < steps; ++i) {
      a += a_step, at = b(i);
      load<4>(a, kLineBytes), load_t1<6>(at, kLineBytes), dot_bf16<0, 4, 6>();
      load_t1<7>(at + kTileWords, kLineBytes), dot_bf16<1, 4, 7>();
      load<5>(a + kTileWords, kLineBytes), dot_bf16<2, 5, 6>();
      dot_bf16<3, 5, 7>();
      beside();
    }
  }

  static TILEKILN_INLINE vh probabilities(const Powers& powers, PassScratch& w, float* p, u64 i, vf first, vf second,
                                          vf factor, vh top, const uint16_t* keep) {
    vf l = w.l[i];
    const vh power = powers(first, second, factor, broadcast(w.base[i]), l);
    w.l[i] = l;
    if (!Scores::kPlain && keep)
      store(p + 16 * i, words(kept(power, load_halves((const bf16*)keep + i / 16 * kGroupKeys), int(i % 16))));
    else
      store(p + 16 * i, words(power));
    return higher(top, power);
  }
  static TILEKILN_INLINE vh probabilities(const Powers& powers, const Scores& logits, PassScratch& w, const float* s,
                                          float* p, u64 i, i64 key, vf factor, vh top, const uint16_t* keep) {
    const float* const x = row_of(s, i);
    vf first = load(x), second = load(x + tiles::kTileWords);
    logits(int(i), key, ~0u, first, second, w.odd);
    return probabilities(powers, w, p, i, first, second, factor, top, keep);
  }
  // seen: a bit a key.
  static TILEKILN_INLINE vh probabilities(const Powers& powers, const Scores& logits, PassScratch& w, const float* s,
                                          float* p, u64 i, i64 key, uint32_t seen, vf factor, vh top,
                                          const uint16_t* keep) {
    const float* const x = row_of(s, i);
    const vf none = broadcast(-kInfinity);
    vf first = load(x), second = load(x + tiles::kTileWords);
    logits(int(i), key, seen, first, second, w.odd);
    return probabilities(powers, w, p, i, select(lane_bits(seen), first, none),
                         select(lane_bits(seen >> 16), second, none), factor, top, keep);
  }

  // The largest logit that row i sees of a group; below kNoShift where it sees none.
  float highest_of(const float* s, int i, i64 key) const {
    const uint32_t seen = sight_.row(i, key);
    const vf none = broadcast(-kInfinity);
    vf first = load(row_of(s, i)), second = load(row_of(s, i) + tiles::kTileWords);
    logits_(i, key, seen, first, second, w_.odd);
    return (Scores::kPlain ? c_ : 1.f) *
           highest(max(select(lane_bits(seen), first, none), select(lane_bits(seen >> 16), second, none)));
  }

  // The group in which a key lies, or the nearest.
  int group_of(i64 key) const {
    const i64 g = groups_.near + (key - groups_.begin) / kGroupKeys;
    return int(g < 0 ? 0 : g < groups_.count ? g : groups_.count - 1);
  }

  // Maxima of the first group, and of the second for rows that begin there, as those of a window do. With alibi those beside the diagonal,
  // from which logits fall to both sides, come first.
  void first_maxima(int k_steps) {
    int order[4], count = 0;
    if (logits_.has_alibi) {
      order[count++] = group_of(logits_.distance);
      order[count++] = group_of(logits_.distance + kPassRows - 1);
    }
    order[count++] = 0, order[count++] = 1;
    for (int n = 0; n < count && order[n] < groups_.count; ++n) {
      bool all = true;
      const float* s = w_.s[0];
      if (order[n] > 0) {
        float* last = nullptr;
        scores(w_.q, groups_.k(order[n]), k_steps, w_.again, last, [] {});
        tiles::settle(last);
        s = w_.again;
      }
      for (int i = 0; i < kPassRows; ++i) {
        // Groups beside the diagonal are two: the higher maximum is right.
        if (w_.shift[i] != kNoShift && !(logits_.has_alibi && n == 1)) continue;
        const float highest = highest_of(s, i, groups_.key(order[n]));
        if (highest > w_.shift[i])
          shift(i, highest);
        else
          all &= w_.shift[i] != kNoShift;
      }
      if (all && !(logits_.has_alibi && n == 0)) return;
    }
  }

  // P of block j once more, where a maximum must be raised; what the row had is multiplied. Rows without cause get what they had.
  [[gnu::noinline]] void again(int j, int count, int k_steps, int o_pairs) {
    float* last = nullptr;
    for (int g = 0; g < count; ++g)
      scores(w_.q, groups_.k(j * kBlockGroups + g), k_steps, w_.again + g * 2 * kTwoTiles, last, [] {});
    tiles::settle(last);
    for (int i = 0; i < kPassRows; ++i) {
      const float old = w_.shift[i];
      float to = old;
      for (int g = 0; g < count; ++g) {
        const float highest = highest_of(w_.again + g * 2 * kTwoTiles, i, groups_.key(j * kBlockGroups + g));
        if (highest > to + kRoom - 1) to = highest;
      }
      w_.l[i] = w_.block_l[i];
      if (to == old) continue;
      shift(i, to);
      const vf alpha = exp2<5>(broadcast(old - w_.shift[i]));
      w_.l[i] = mul(w_.l[i], alpha);
      if (j == 0) continue;
      for (int d = 0; d < 2 * o_pairs; ++d) {
        float* const o = w_.o + d / 2 * 2 * kTwoTiles + i / 16 * kTwoTiles + d % 2 * tiles::kTileWords + i % 16 * 16;
        store(o, mul(load(o), alpha));
      }
    }
    const vf factor = broadcast(Powers::factor(Scores::kPlain ? c_ : 1.f));
    const Powers powers;
    for (int g = 0; g < count; ++g) {
      const int group = j * kBlockGroups + g;
      const uint16_t* keep = nullptr;
      if constexpr (!Scores::kPlain) keep = logits_.drops() ? w_.keep[group % (2 * kBlockGroups)] : nullptr;
      const i64 key = groups_.key(group);
      for (int i = 0; i < kPassRows; ++i)
        probabilities(powers, logits_, w_, w_.again + g * 2 * kTwoTiles, w_.p[j % 2] + g * kTwoTiles, u64(i), key,
                      sight_.row(i, key), factor, zero_halves(), keep);
    }
    tiles::fence();
  }

  PassScratch& w_;
  const Groups groups_;
  const Sight sight_;
  const float c_;
  const int k_steps_, o_pairs_;
  const Scores logits_;
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
