// SPDX-License-Identifier: MIT
// Units whatever their mask, scores, scales, sink and head dims: two passes over the keys. Their keys are packed once for the units of a
// head that follow each other.
#pragma once

#include "kernels/attention/cpu/qlanes/forward.h"
#include "kernels/attention/cpu/qtiles/pass.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The largest magnitudes of packed blocks.
struct Tops { uint16_t k[kMostPacked], v[kMostPacked]; };

struct TileScratch : Scratch {
  Tops tops;
  alignas(64) PassScratch pass;
};

// The rows of a block of DenseKeys.
class DenseRows {
 public:
  DenseRows(const FwdProblem& a, const FwdUnit& u, int head_k, i64 bytes)
      : k_((const char*)a.k + bytes * (u.k_offset + head_k * a.k_head)),
        v_((const char*)a.v + bytes * (u.v_offset + head_k * a.v_head)),
        k_stride_(bytes * a.k_row),
        v_stride_(bytes * a.v_row) {}

  const char* k() const { return k_; }
  const char* v() const { return v_; }
  const int* table() const { return nullptr; }
  i64 first() const { return 0; }

  void block_k(BlockRows& rows, i64 key, int count) const {
    for (int i = 0; i < count; ++i) rows.row[i] = k_ + (key + i) * k_stride_;
  }
  void block_v(BlockRows& rows, i64 key, int count) const {
    for (int i = 0; i < count; ++i) rows.row[i] = v_ + (key + i) * v_stride_;
  }

 private:
  const char *k_, *v_;
  i64 k_stride_, v_stride_;  // bytes
};

// Blocks of keys as groups in scratch, and the largest magnitudes among those of a unit.
template <class T> class GroupKeys {
 public:
  // A first key below 0: no other engine's blocks of the head have it.
  template <class Rows> GroupKeys(Scratch& w, Tops& tops, const Rows& rows, int hdim_q, int hdim_v)
      : tops_(tops),
        hdim_q_(hdim_q),
        hdim_v_(hdim_v),
        packed_(w, rows.k(), rows.v(), rows.table(), ~rows.first(), k_words(), v_words()) {}

  bool has_place(i64 key) const { return packed_.k(key) != nullptr; }
  i64 k_words() const { return 2 * group_words(hdim_q_); }
  i64 v_words() const { return 2 * group_words(hdim_v_); }
  const float* room() const { return packed_.k(0); }

  template <class Rows> void add(const Rows& rows, i64 key, int keys) {
    const i64 block = key / kTileK;
    BlockRows there;
    if (!packed_.has_k(key, keys)) {
      rows.block_k(there, key, keys);
      tops_.k[block] = load_key_groups<T>(packed_.k(key), there, keys, hdim_q_);
      packed_.keep_k(key, keys);
      rows.block_v(there, key, keys);
      tops_.v[block] = load_value_groups<T>(packed_.v(key), there, keys, hdim_v_);
      packed_.keep_v(key, keys);
    }
    if (tops_.k[block] > k_top_) k_top_ = tops_.k[block];
    if (tops_.v[block] > v_top_) v_top_ = tops_.v[block];
  }
  float k_top() const { return number(k_top_); }
  float v_top() const { return number(v_top_); }

 private:
  Tops& tops_;
  const int hdim_q_, hdim_v_;
  Packed packed_;
  uint16_t k_top_ = 0, v_top_ = 0;
};

// O / l and the log-sum-exp of the rows of a pass.
template <class Out, class Problem, class Unit>
void finish_pass(const Problem& a, const Unit& u, const PassScratch& w, int row, int rows, float gain) {
  Out* const out = (Out*)a.out + u.out_offset + u.head * a.out_head + i64(row) * a.out_row;
  for (int i = 0; i < rows; ++i) {
    const float l = total(w.l[i]);
    const vf factor = broadcast(l == 0 ? 0.f : gain / l);
    const float* const o = w.o + i / 16 * kTwoTiles + i % 16 * 16;
    for (int d = 0; d < a.hdim_v; d += 32) {
      const vf low = mul(load(o + d / 32 * 2 * kTwoTiles), factor),
               high = mul(load(o + d / 32 * 2 * kTwoTiles + tiles::kTileWords), factor);
      Out* const to = out + i * a.out_row + d;
      if constexpr (sizeof(Out) == sizeof(bf16)) {
        store_halves(to, both(low, high), a.hdim_v - d);
      } else {
        narrow_some(to, low, a.hdim_v - d);
        if (a.hdim_v > d + 16) narrow_some(to + 16, high, a.hdim_v - d - 16);
      }
    }
    if (a.features.lse)
      a.lse[u.lse_offset + u.head * a.lse_head + row + i] = l == 0 ? -kInfinity : w.shift[i] * kLn2 + __builtin_logf(l);
  }
}

template <class Powers, class Scores>
TILEKILN_INLINE void run_pass(PassScratch& w, const Groups& groups, const Sight& sight, float c, int k_steps,
                              int o_pairs, float shift, float sum, const Scores& logits) {
  Pass<Powers, Scores> pass(w, groups, sight, c, k_steps, o_pairs, logits);
  if (Scores::kPlain && k_steps == 4 && o_pairs == 4)
    pass.template run<4, 4>(shift, sum);
  else if (Scores::kPlain && k_steps == 2 && o_pairs == 2)
    pass.template run<2, 2>(shift, sum);
  else
    pass.template run<0, 0>(shift, sum);
}

// Tells whether logits and their maxima were numbers that are not far from 0, in every row.
inline bool are_near(const PassScratch& w, int rows) {
  bool near = w.odd == 0;
  for (int i = 0; i < rows; ++i) near &= __builtin_fabsf(w.shift[i]) < kFar && total(w.l[i]) > 0;
  return near;
}

// False: the unit is for qlanes' blocks, which write all of it. So are scores that may not be numbers or lie far from 0, and a V of which
// some is no number, which a P of 0 must not meet.
// q of Q, keys and values of T, bf16 or fp32 results. The keys of the unit: [begin_key, end_key).
template <class Q, class T, class Out, class Rows, class Problem, class Unit, class Space>
bool plain_forward(const Problem& a, const Unit& u, const Descales& descales, const Rows& keys_at, i64 begin_key,
                   i64 end_key, bool sinks, Space& w) {
  if (descales.blocked() || (a.features.dropout && a.randval)) return false;
  const bool plain = a.features.bias == Bias::none && !a.features.softcap && !a.features.dropout;
  const float scale = a.softmax_scale * descales.q, c = __builtin_fabsf(scale) * kLog2e;
  if (!(__builtin_fabsf(scale) >= 1e-30f)) return false;
  float shift = kNoShift, sum = 0;
  if (sinks && a.features.sink && a.sink && a.sink[u.head] != -kInfinity) {
    shift = a.sink[u.head] * kLog2e, sum = 1;
    if (!(__builtin_fabsf(shift) < kFar)) return false;
  }
  const int rows = u.seqlen_q - u.row < kTileQ ? u.seqlen_q - u.row : kTileQ;
  if (a.features.softcap && !(__builtin_fabsf(a.softcap) * kLog2e < kFar && __builtin_fabsf(scale / a.softcap) < 1e30f))
    return false;

  // Keys that some row sees, in whole blocks: those below the sink, and [begin, end).
  const fmha::Window window = fmha::window_of(a, u);
  const i64 shifted = u.row + window.shift;
  const i64 end = end_key < shifted + rows + window.right ? end_key : shifted + rows + window.right;
  const i64 aligned = shifted - window.left < 0 ? 0 : (shifted - window.left) / kTileK * kTileK;
  i64 begin = aligned < begin_key ? begin_key : aligned, near_end = begin_key;
  while (near_end < window.sink && near_end < begin) near_end += kTileK;
  if (near_end >= begin) begin = near_end = begin_key;

  if (a.features.bias == Bias::alibi) {
    const float slope = __builtin_fabsf(a.alibi_slopes[u.alibi_offset + u.head]);
    if (!(slope * kLog2e * float(__builtin_llabs(shifted) + rows + end_key) < kFar)) return false;
  }

  GroupKeys<T> keys(w, w.tops, keys_at, a.hdim_q, a.hdim_v);
  if (end > begin && !keys.has_place(end - 1)) return false;
  const auto add = [&](i64 from, i64 to) {
    for (i64 key = from; key < to; key += kTileK)
      keys.add(keys_at, key, end_key - key < kTileK ? int(end_key - key) : kTileK);
  };
  add(begin_key, near_end < end ? near_end : end);
  add(begin, end);
  if (!(keys.v_top() < kInfinity)) return false;

  const Q* const q = (const Q*)a.q + u.q_offset + u.head * a.q_head + i64(u.row) * a.q_row;
  const int k_words = int(keys.k_words()), v_words = int(keys.v_words());
  for (int first = 0; first < rows; first += kPassRows) {
    const int left = rows - first < kPassRows ? rows - first : kPassRows;
    const float q_top =
        number(load_query_groups<Q>(w.pass.q, q + first * a.q_row, a.q_row, left, a.hdim_q, scale < 0 ? 0x8000 : 0));
    if (!(q_top * keys.k_top() * a.hdim_q * c < kFar)) return false;

    const i64 row = shifted + first;
    const Sight sight{row - window.left, row + window.right, window.sink, end_key};
    const i64 seen_end = sight.last + left < end_key ? sight.last + left : end_key;
    i64 seen_begin = begin;
    if (sight.first > begin && (window.sink <= begin_key || near_end > begin_key))
      seen_begin += (sight.first - begin) / kTileK * kTileK;
    Groups groups{keys.room(), k_words + v_words, k_words, k_words / 2, v_words / 2, begin_key, seen_begin, 0, 0};
    if (near_end > begin_key && seen_end > near_end) groups.near = int((near_end - begin_key) / kGroupKeys);
    if (near_end > begin_key && groups.near == 0) groups.begin = begin_key;
    if (seen_end > groups.begin) groups.count = int((seen_end - groups.begin + kGroupKeys - 1) / kGroupKeys);
    groups.count += groups.near;

    const int k_steps = (a.hdim_q + 31) / 32, o_pairs = (a.hdim_v + 31) / 32;
    const auto run = [&](const auto& logits) {
      if (a.features.lse)
        run_pass<RoundedPowers>(w.pass, groups, sight, c, k_steps, o_pairs, shift, sum, logits);
      else
        run_pass<FixedPowers>(w.pass, groups, sight, c, k_steps, o_pairs, shift, sum, logits);
    };
    if (plain) {
      run(PlainScores());
    } else {
      run(ChangedScores(a, u, scale, c, first, left, shifted));
      if (!are_near(w.pass, left)) return false;
    }
    finish_pass<Out>(a, u, w.pass, u.row + first, left,
                     a.features.dropout ? descales.v / (1 - a.dropout_p) : descales.v);
  }
  return true;
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
