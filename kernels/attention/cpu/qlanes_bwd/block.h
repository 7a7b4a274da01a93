// SPDX-License-Identifier: MIT
// One 64 x 64 block: five products around one elementwise stage.
//
//   S^T = K Q^T    dP^T = V dO^T    P, dS (gradients.h)    dV += P^T dO    dK += dS^T Q    dQ += dS K
#pragma once

#include "kernels/attention/cpu/product.h"
#include "kernels/attention/cpu/qlanes_bwd/gradients.h"
#include "kernels/attention/cpu/score.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Strides of the rows in scratch, in words.
struct BwdStrides {
  int q_words, v_words;      // words of a row of Q and K, of dO and V, along the head dim
  int q_vectors, v_vectors;  // vectors of a row of dQ and dK, of dV
  i64 k, v;                  // rows of K and V in words along the head dim
  i64 q, dout;               // rows of everything whose vectors run along the head dim: Q, K, dQ, dK; dO, dV
};

// Gradients of a function of an operator's own, from raw scores and dP of a vector of queries to P and dS in words. seen: the lanes of
// [vector][key] that a mask of its own shows; null: all.
using GradientStage = void (*)(BwdScratch&, const Gradients&, const Score&, int j, const KeyRange&, const Edges&,
                               const lane_bits* seen);

struct BwdBlock {
  BwdScratch& scratch;
  BwdStrides stride;
  ScoreStage stage;  // null: plain
  Score score;
  Gradients gradients;
  bool dropped;
  Cap cap;
  Ahead& ahead;
  // Marks of whether dQ of the tile, and dK and dV of each block of the chunk (a bit each), hold sums. What does not is overwritten.
  bool dq_begun;
  unsigned dk_begun;
  GradientStage own;      // in place of stage and gradients; or null
  const lane_bits* seen;  // with own
};

template <class Compute> void block_gradients(const BwdBlock& b, int j, const KeyRange& range, const Edges& edges) {
  BwdScratch& w = b.scratch;
  const auto of = [&]<Cap kCap>() {
    if (b.dropped)
      gradients<Compute, true, kCap>(w, b.gradients, b.score, j, range, edges);
    else
      gradients<Compute, false, kCap>(w, b.gradients, b.score, j, range, edges);
  };
  switch (b.cap) {
    case Cap::none: return of.template operator()<Cap::none>();
    case Cap::alone: return of.template operator()<Cap::alone>();
    case Cap::below_alibi: return of.template operator()<Cap::below_alibi>();
  }
}

inline void clear_keys(BwdBlock& b, int key0) {
  __builtin_memset(b.scratch.dk + key0 * b.stride.q, 0, sizeof(float) * kTileK * b.stride.q);
  __builtin_memset(b.scratch.dv + key0 * b.stride.dout, 0, sizeof(float) * kTileK * b.stride.dout);
}

// The first product's way into empty sums: over them when it writes `all`, else they are cleared for it.
inline Into begin_keys(BwdBlock& b, int key0, bool all) {
  const unsigned block = 1u << key0 / kTileK;
  if (b.dk_begun & block) return Into::add;
  b.dk_begun |= block;
  if (all) return Into::overwrite;
  clear_keys(b, key0);
  return Into::add;
}

inline Into begin_queries(BwdBlock& b, bool all) {
  if (b.dq_begun) return Into::add;
  b.dq_begun = true;
  if (all) return Into::overwrite;
  __builtin_memset(b.scratch.dq, 0, sizeof(float) * kTileQ * b.stride.q);
  return Into::add;
}

// key0: of the block in the chunk. rows: queries that exist.
template <class Compute> void backward_block(BwdBlock& b, int key0, int rows, const Visible& visible) {
  constexpr auto kRows = Broadcast::rows, kColumns = Broadcast::columns;
  using Words = BlockWords<Compute>;
  BwdScratch& w = b.scratch;
  const BwdStrides& t = b.stride;

  int keys_seen = 0;
  visible.key_runs([&](int key, int key_end, int j, int j_end) {
    const int at = key * kTileQ + j * kLanes, keys = key_end - key, q = j * kLanes;
    keys_seen += keys;
    product<Compute, kRows>(Into::overwrite, w.k + (key0 + key) * t.k, t.k, w.q_t + q, kTileQ, 0, t.q_words, w.s + at,
                            kTileQ, keys, j_end - j, b.ahead);
    product<Compute, kRows>(Into::overwrite, w.v + (key0 + key) * t.v, t.v, w.dout_t + q, kTileQ, 0, t.v_words,
                            w.dp + at, kTileQ, keys, j_end - j, b.ahead);
  });

  for (int j = 0; j < visible.vectors; ++j) {
    const KeyRange& range = visible.range[j];
    vf maximum[kVectors];  // the stages also serve the forward
    maximum[j] = zero();
    if (b.own) {
      b.own(w, b.gradients, b.score, j, range, visible.edges, b.seen);
      continue;
    }
    if (b.stage) b.stage(w.s, j, j + 1, range.begin, range.end, maximum, b.score);
    block_gradients<Compute>(b, j, range, visible.edges);
  }

  const Into into_keys = begin_keys(b, key0, keys_seen == round_up(visible.edges.keys, kGroup));
  visible.key_runs([&](int key, int key_end, int j, int j_end) {
    const int q = j * kLanes, q_end = j_end * kLanes < rows ? j_end * kLanes : rows, keys = key_end - key;
    const int begin = q / Compute::kWord, end = (q_end + Compute::kWord - 1) / Compute::kWord,
              at = key * Words::kStride;
    product<Compute, kRows>(into_keys, Words::p(w) + at, Words::kStride, w.dout, t.dout, begin, end,
                            w.dv + (key0 + key) * t.dout, t.dout, keys, t.v_vectors, b.ahead);
    product<Compute, kRows>(into_keys, Words::ds(w) + at, Words::kStride, w.q, t.q, begin, end,
                            w.dk + (key0 + key) * t.q, t.q, keys, t.q_vectors, b.ahead);
  });

  const Into into_dq = begin_queries(b, visible.all_vectors());
  const float* k = Words::kCopies ? w.k_keys : w.k;
  visible.vector_runs([&](int j, int j_end, const KeyRange& range) {
    const int q = j * kLanes, begin = range.begin / Compute::kWord, end = range.end / Compute::kWord;
    product<Compute, kColumns>(into_dq, Words::ds_keys(w) + q, kTileQ, k + key0 / Compute::kWord * t.q, t.q, begin, end,
                               w.dq + q * t.q, t.q, (j_end - j) * kLanes, t.q_vectors, b.ahead);
  });
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
