// One 64 x 64 block: five products around one elementwise stage.
//
//   S^T = K Q^T    dP^T = V dO^T    P, dS (gradients.h)    dV += P^T dO    dK += dS^T Q    dQ += dS K
#pragma once

#include "tilekiln/cpu/product.h"
#include "tilekiln/cpu/qlanes_bwd/gradients.h"
#include "tilekiln/cpu/score.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Strides of the rows in scratch, in words.
struct BwdStrides {
  int q_words, v_words;      // words of a row of Q and K, of dO and V, along the head dim
  int q_vectors, v_vectors;  // vectors of a row of dQ and dK, of dV
  i64 k, v;                  // rows of K and V in words along the head dim
  i64 q, dout;               // rows of everything whose vectors run along the head dim: Q, K, dQ, dK; dO, dV
};

struct BwdBlock {
  BwdScratch& scratch;
  BwdStrides stride;
  ScoreStage stage;  // null: plain
  Score score;
  Gradients gradients;
  bool dropped, capped;
};

template <class Compute> void block_gradients(const BwdBlock& b, int j, const KeyRange& range, const Edges& edges) {
  BwdScratch& w = b.scratch;
  if (b.dropped) {
    if (b.capped)
      gradients<Compute, true, true>(w, b.gradients, j, range, edges);
    else
      gradients<Compute, true, false>(w, b.gradients, j, range, edges);
  } else {
    if (b.capped)
      gradients<Compute, false, true>(w, b.gradients, j, range, edges);
    else
      gradients<Compute, false, false>(w, b.gradients, j, range, edges);
  }
}

// key0: of the block in the chunk. rows: queries that exist.
template <class Compute> void backward_block(const BwdBlock& b, int key0, int rows, const Visible& visible) {
  constexpr auto kRows = Broadcast::rows, kColumns = Broadcast::columns;
  using Words = BlockWords<Compute>;
  BwdScratch& w = b.scratch;
  const BwdStrides& t = b.stride;

  visible.key_runs([&](int key, int key_end, int j, int j_end) {
    const int at = key * kTileQ + j * kLanes, keys = key_end - key, q = j * kLanes;
    product<Compute, Into::overwrite, kRows>(w.k + (key0 + key) * t.k, t.k, w.q_t + q, kTileQ, 0, t.q_words, w.s + at,
                                             kTileQ, keys, j_end - j);
    product<Compute, Into::overwrite, kRows>(w.v + (key0 + key) * t.v, t.v, w.dout_t + q, kTileQ, 0, t.v_words,
                                             w.dp + at, kTileQ, keys, j_end - j);
  });

  for (int j = 0; j < visible.vectors; ++j) {
    const KeyRange& range = visible.range[j];
    vf maximum[kVectors];  // the stages also serve the forward
    maximum[j] = zero();
    if (b.stage) b.stage(w.s, j, j + 1, range.begin, range.end, maximum, b.score);
    block_gradients<Compute>(b, j, range, visible.edges);
  }

  visible.key_runs([&](int key, int key_end, int j, int j_end) {
    const int q = j * kLanes, q_end = j_end * kLanes < rows ? j_end * kLanes : rows, keys = key_end - key;
    const int begin = q / Compute::kWord, end = (q_end + Compute::kWord - 1) / Compute::kWord,
              at = key * Words::kStride;
    product<Compute, Into::add, kRows>(Words::p(w) + at, Words::kStride, w.dout, t.dout, begin, end,
                                       w.dv + (key0 + key) * t.dout, t.dout, keys, t.v_vectors);
    product<Compute, Into::add, kRows>(Words::ds(w) + at, Words::kStride, w.q, t.q, begin, end,
                                       w.dk + (key0 + key) * t.q, t.q, keys, t.q_vectors);
  });

  const float* k = Words::kCopies ? w.k_keys : w.k;
  visible.vector_runs([&](int j, int j_end, const KeyRange& range) {
    const int q = j * kLanes, begin = range.begin / Compute::kWord, end = range.end / Compute::kWord;
    product<Compute, Into::add, kColumns>(Words::ds_keys(w) + q, kTileQ, k + key0 / Compute::kWord * t.q, t.q, begin,
                                          end, w.dq + q * t.q, t.q, (j_end - j) * kLanes, t.q_vectors);
  });
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
