// SPDX-License-Identifier: MIT
// Forward attention with lanes along queries. One tile of 64 queries against all the keys it sees:
//
//   S^T[key][query] = K Q^T     P = 2^(c (S - m))     O^T[d][query] = alpha O^T + V^T P
//
// Blocks of 64 keys are full (no mask edge in them), partial, or invisible and skipped. Everything an instance
// chooses (head dims, mask, score variant, dropout, sink, LSE, scales) is decided here, per tile or per block: compiled once
// per Compute, with no measurable cost against a template instance per head dim and feature.
#pragma once

#include "kernels/attention/cpu/dropout.h"
#include "kernels/attention/cpu/qlanes/full_block.h"
#include "kernels/attention/cpu/qlanes/keys.h"
#include "kernels/attention/cpu/qlanes/partial_block.h"
#include "kernels/attention/window.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using fmha::Bias;

// Null: scores stay as the product left them, and scale is a factor inside 2^x. Not where it is 0, which must not hide a NaN, nor
// where it is so small that a sink logit in units of the scores is no number.
template <class Problem>
TILEKILN_INLINE ScoreStage stage_of(const Problem& a, const Storage& storage, bool blocked_scales, float scale,
                                    float sink) {
  if (a.features.bias == Bias::elementwise) return storage.bias;
  if (a.features.bias == Bias::alibi) return a.features.softcap ? score_alibi<SoftCapped> : score_alibi<Scaled>;
  if (a.features.softcap) return score_map<SoftCapped>;
  const float size = __builtin_fabsf(scale);
  const bool small = size < 1e-30f || __builtin_fabsf(sink) > 1e38f * size;
  return blocked_scales || small ? score_map<Scaled> : nullptr;
}

// The maximum of scores wants a factor > 0, so the sign of the scale moves into Q. Returns the factor left.
template <class Compute> TILEKILN_INLINE float positive_scale(float scale, float* q, int words) {
  if (scale > 0) return scale;
  for (int i = 0; i < words * kTileQ; ++i) {
    uint32_t x;
    __builtin_memcpy(&x, q + i, sizeof x);
    x ^= Compute::kSigns;
    __builtin_memcpy(q + i, &x, sizeof x);
  }
  return -scale;
}

// O = O^T / l, 0 for a row that sees no key;  LSE = scale m + ln l, then -inf. gain: a factor of V.
template <class Stages, class Problem, class Unit, class Space>
TILEKILN_INLINE void finish(const Stages& storage, const Problem& a, const Unit& u, Space& w, const State& state,
                            int rows, float scale, float gain) {
  alignas(64) float factor[kTileQ], m[kTileQ], l[kTileQ];
  const int vectors = (rows + kLanes - 1) / kLanes;
  for (int j = 0; j < vectors; ++j) {
    store(m + j * kLanes, state.m[j]);
    store(l + j * kLanes, state.l[j]);
    if (!state.started[j]) State::clear(j, w.o, round_up(a.hdim_v, 4));
  }
  if (a.features.dropout) gain /= 1 - a.dropout_p;
  for (int i = 0; i < vectors * kLanes; ++i) factor[i] = l[i] == 0 ? 0.f : gain / l[i];
  if (a.features.lse) {
    float* lse = a.lse + u.lse_offset + u.head * a.lse_head + u.row;
    for (int i = 0; i < rows; ++i) lse[i] = l[i] == 0 ? -kInfinity : scale * m[i] + __builtin_logf(l[i]);
  }
  char* out = (char*)a.out + storage.out_bytes * (u.out_offset + u.head * a.out_head + u.row * a.out_row);
  storage.store_out(out, a.out_row, w.o, factor, rows, a.hdim_v);
}

// The random bytes of all keys of the sequence, seen or not.
template <class Problem, class Unit>
void store_random_bytes(const Problem& a, const Unit& u, int rows, u64 rng_offset) {
  unsigned char* randval = a.randval + u.randval_offset + u.head * a.randval_head + u.row * a.randval_row;
  for (int key = 0; key < u.seqlen_k; key += kTileK) {
    const int keys = u.seqlen_k - key < kTileK ? u.seqlen_k - key : kTileK;
    store_randval(randval + key, a.randval_row, a.rng_seed, rng_offset, u.row, key, rows, keys);
  }
}

// Asks for rows that wait for nothing but the tile's end: its results and the next tile's queries, in the block before the last. Each
// row is in a page of its own and was a wait when the tile came to it: 512 tokens take 0.89-0.99 of the time. Tiles of one or two
// blocks ask in the first: 0.98 of 512 causal tokens; but those of short sequences, which a cache still holds, not at all (0.97).
template <class Stages, class Problem, class Unit>
TILEKILN_INLINE void fetch_edges(Block& b, const Stages& storage, const Problem& a, const Unit& u, int rows) {
  const i64 out = u.out_offset + u.head * a.out_head + u.row * a.out_row;
  b.fetch_out = {(const char*)a.out + storage.out_bytes * out, storage.out_bytes * a.out_row,
                 i64(storage.out_bytes) * a.hdim_v, rows};
  if (u.next_head < 0) return;
  const i64 q = u.q_offset + u.next_head * a.q_head + u.next_row * a.q_row;
  const int next_rows = u.seqlen_q - u.next_row < kTileQ ? u.seqlen_q - u.next_row : kTileQ;
  b.fetch_q = {(const char*)a.q + storage.q_bytes * q, storage.q_bytes * a.q_row, i64(storage.q_bytes) * a.hdim_q,
               next_rows};
}

// Source: where the keys come from (keys.h). The arguments are Storage, FwdProblem, FwdUnit and Scratch, or extend them. Stages may
// have `own_score`, a ScoreStage that does all that there is between scores and logits: an operator's own score function; and
// `own_mask`, a MaskStage, for which the operator goes without dropout: its lanes lie where dropout keeps its bits. With `own_weights` what
// own_score makes are the weights of V: there is no softmax, and no LSE.
template <class Compute, class Source = DenseKeys, class Stages, class Problem, class Unit, class Space>
void forward(const Stages& storage, const Problem& a, const Unit& u, Space& w) {
  const int rows = u.seqlen_q - u.row < kTileQ ? u.seqlen_q - u.row : kTileQ;
  if (rows <= 0) return;
  const int vectors = (rows + kLanes - 1) / kLanes, head_k = u.head / (a.nhead_q / a.nhead_k);
  const char* q = (const char*)a.q + storage.q_bytes * (u.q_offset + u.head * a.q_head + u.row * a.q_row);

  const int q_words = (a.hdim_q + Compute::kWord - 1) / Compute::kWord, o_rows = round_up(a.hdim_v, 4);
  Source source(storage, a, u, head_k, w, Compute::kWord);

  // The keys that some row sees: [begin, end), and those below the sink.
  const fmha::Window window = fmha::window_of(a, u);
  const i64 shifted = u.row + window.shift;
  const i64 last_key = Source::end(u);
  const i64 end = last_key < shifted + rows + window.right ? last_key : shifted + rows + window.right;
  const i64 aligned = shifted - window.left < 0 ? 0 : (shifted - window.left) / kTileK * kTileK;
  const i64 begin = aligned < Source::begin(u) ? Source::begin(u) : aligned;
  const int first_keys = int(end - begin < 0 ? 0 : end - begin < kTileK ? end - begin : kTileK);
  source.prefetch(begin, first_keys);
  storage.load_q(w.q, q, a.q_row, rows, a.hdim_q);

  const Descales descales = Source::descales(a, u, head_k);
  const bool has_sink = a.features.sink && a.sink && Source::has_sink(u) && a.sink[u.head] != -kInfinity;
  const float sink = has_sink ? a.sink[u.head] : 0.f;
  float scale = a.softmax_scale * descales.q;
  constexpr bool kOwnScore = requires { Stages::own_score; }, kOwnMask = requires { Stages::own_mask; };
  constexpr bool kWeighs = requires { Stages::own_weights; };
  ScoreStage stage;
  if constexpr (kOwnScore)
    stage = Stages::own_score;
  else
    stage = stage_of(a, storage, descales.blocked(), scale, sink);
  if (!stage) scale = positive_scale<Compute>(scale, w.q, q_words);
  if constexpr (kSquares<Compute>) {
    if (squared_queries<Compute>(q_words)) make_squares(w.q, q_words, vectors);
  }
  const float unit = stage ? 1.f : scale;  // m is in logits, or in scores that unit makes logits
  const float c = unit < -kLowest / kLog2e ? kLog2e * unit : -kLowest;

  // m, l: a sink logit is one more key, seen first, whose V is 0. One that is no number makes l none.
  State state;
  const bool finite = __builtin_fabsf(sink) < kInfinity;
  const float first_m = has_sink && finite ? sink / unit : kLowest, first_l = has_sink ? finite ? 1.f : kNan : 0.f;
  for (int j = 0; j < vectors; ++j) {
    state.m[j] = broadcast(first_m);
    state.l[j] = broadcast(first_l);
    state.shift[j] = rounded(mul(state.m[j], broadcast(c)));
    state.started[j] = false;
  }

  Block b{w, state, c, stage, {}, false, {w.keep, 1.f}, q_words, o_rows, {}, {}, {}, {}, {}, {}, {}};
  b.score = {1.f, scale, a.softcap, 0.f, nullptr, a.bias_row, rows, 0, 0, nullptr, 0, 0, 0, 0};
  if constexpr (kOwnScore || kOwnMask) {
    b.score.own = &a;
    b.score.head = u.head, b.score.batch = u.batch, b.score.row = u.row;
  }
  if (a.features.bias == Bias::alibi) b.score.slope = -a.alibi_slopes[u.alibi_offset + u.head];
  const char* bias = nullptr;
  if (a.features.bias == Bias::elementwise)
    bias = (const char*)a.bias + storage.bias_bytes * (u.bias_offset + u.head * a.bias_head + u.row * a.bias_row);
  b.altered = a.features.dropout || descales.blocked();
  if (b.altered && !a.features.dropout) __builtin_memset(w.keep, 0xff, sizeof w.keep);

  const u64 rng_offset = a.rng_offset + (u64(u.batch) * a.nhead_q + u.head) * 64;
  const uint8_t threshold = core::dropout_threshold(a.dropout_p);
  if (a.features.dropout && a.randval) store_random_bytes(a, u, rows, rng_offset);

  const bool several = u.seqlen_q > 2 * kTileQ;  // tiles
  for (i64 key = window.sink > Source::begin(u) ? Source::begin(u) : begin; key < end; key += kTileK) {
    if (key >= window.sink && key < begin) key = begin;
    if (key >= end) break;
    const int keys = last_key - key < kTileK ? int(last_key - key) : kTileK;
    b.score.keys = keys;
    b.score.key = key;
    Sees sees = Sees::all;
    if constexpr (kOwnMask) {
      sees = Stages::own_mask(b.score, w.keep);
      if (sees == Sees::none) continue;
    }
    source.block(b, key, keys, end);
    b.fetch_q.count = b.fetch_out.count = 0;
    const i64 left = end - key;  // from this block on
    if (left <= 2 * kTileK && (key == begin ? several : left > kTileK)) fetch_edges(b, storage, a, u, rows);
    if (a.features.dropout) keep_block(w.keep, a.rng_seed, rng_offset, u.row, int(key), threshold);
    if (descales.blocked()) {
      b.score.c = scale * descales.k[descales.at(key)];
      b.alteration.gain = descales.v_blocks[descales.at(key)];
    }
    b.score.distance = shifted - key;
    if (bias) b.score.bias = bias + storage.bias_bytes * key;

    // Lane i sees the block's keys [i + first, i + last].
    const i64 first = shifted - window.left - key, last = shifted + window.right - key;
    const Edges edges{first, last, window.sink - key, keys};
    if constexpr (kOwnMask) {
      if (sees == Sees::some) {
        partial_block<Compute, OwnLanes, kWeighs>(b, vectors, edges);
        continue;
      }
    }
    if (last >= keys - 1 && (first + rows - 1 <= 0 || key + keys <= window.sink))
      full_block<Compute, kWeighs>(b, vectors);
    else
      partial_block<Compute, SeenLanes, kWeighs>(b, vectors, edges);
  }
  for (int j = 0; j < vectors && kWeighs; ++j) state.l[j] = broadcast(1.f);

  finish(storage, a, u, w, state, rows, unit, descales.v);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
