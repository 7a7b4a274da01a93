// SPDX-License-Identifier: MIT
// Gradients of queries and keys of a chunk by those of their decayed products, as decays.h makes these, whatever the gates are of.
#pragma once

#include "kernels/linear_attention/cpu/chunk.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Rows of d numbers: queries and keys as they were read, and their gradients, of a key as the later of two tokens and as the earlier.
struct Meetings {
  float *q, *k, *dq, *late, *early, *fading;  // fading: what is kept of a key up to a block
  float *of_attended, *of_lower;              // gradients of the products, lower triangles
};

// Sets what stands above the diagonal in its blocks to 0, and the diagonal with it unless it is kept.
template <bool kDiagonal> TILEKILN_INLINE void clear_upper(int rows, float* to) {
  for (int i = 0; i < rows; ++i) {
    for (int j = i + kDiagonal; j < (i / kBlock + 1) * kBlock; ++j) to[i * kChunk + j] = 0;
  }
}

// dq, late and early hold the gradients of q', k' and k" on entry, those of q and k when this ends. Overwrites gates of heads.
inline void meetings_backward(const Delta& a, Chunk& c, Meetings& m) {
  const int d = c.d;
  for (int i = 0; i < c.rows && !a.by_channel; ++i) {
    for (int r = 0; r < d; r += kLanes) store(c.gates + i * d + r, broadcast(c.gate[i]));
  }
  for (int r = 0; r < d; r += kLanes) {
    vf sum = zero();
    for (int i = 0; i < c.rows; ++i) {
      sum = add(sum, load(c.gates + i * d + r));
      const vf factor = decay(sum);
      store(m.dq + i * d + r, mul(factor, load(m.dq + i * d + r)));
      store(m.late + i * d + r, mul(factor, load(m.late + i * d + r)));
    }
    sum = zero();
    for (int i = c.rows - 1; i >= 0; --i) {
      store(m.early + i * d + r, mul(decay(sum), load(m.early + i * d + r)));
      sum = add(sum, load(c.gates + i * d + r));
    }
  }
  float *queries = c.some, *keys = queries + kBlock * d, *factors = keys + kBlock * d;
  for (int b = 0; b < c.rows; b += kBlock) {
    const float *of_attended = m.of_attended + b * kChunk, *of_lower = m.of_lower + b * kChunk;
    for (int r = 0; b > 0 && r < d; r += kLanes) {
      vf kept = zero();
      for (int i = 0; i < kBlock; ++i) {
        const int at = i * d + r;
        kept = add(kept, load(c.gates + b * d + at));
        const vf factor = decay(kept);
        store(factors + at, factor);
        store(queries + at, mul(factor, load(m.q + b * d + at)));
        store(keys + at, mul(factor, load(m.k + b * d + at)));
      }
      kept = zero();
      for (int j = b - 1; j >= 0; --j) {
        const vf factor = decay(kept);
        store(m.fading + j * d + r, factor);
        store(c.decayed + j * d + r, mul(factor, load(m.k + j * d + r)));
        kept = add(kept, load(c.gates + j * d + r));
      }
    }
    const auto add_to = [&](float* to, const float* times) __attribute__((always_inline)) {
      return [=](int i, int r, vf sum) __attribute__((always_inline)) {
        store(to + i * d + r, fma(load(times + i * d + r), sum, load(to + i * d + r)));
      };
    };
    if (b > 0) {
      product<Walk::rows>(of_attended, kChunk, c.decayed, d, b, kBlock, d, add_to(m.dq + b * d, factors));
      product<Walk::columns>(of_attended, kChunk, queries, d, kBlock, b, d, add_to(m.early, m.fading));
      if (a.corrects) {
        product<Walk::rows>(of_lower, kChunk, c.decayed, d, b, kBlock, d, add_to(m.late + b * d, factors));
        product<Walk::columns>(of_lower, kChunk, keys, d, kBlock, b, d, add_to(m.early, m.fading));
      }
    }
    for (int j = b; j < b + kBlock; ++j) {
      for (int r = 0; r < d; r += kLanes) {
        const vf key = load(m.k + j * d + r);
        vf kept = zero(), early = load(m.early + j * d + r);
        for (int i = j; i < b + kBlock; ++i) {
          const int at = i * d + r;
          if (i > j) kept = add(kept, load(c.gates + at));
          const vf factor = decay(kept), product = mul(factor, key);
          const vf by_q = broadcast(m.of_attended[i * kChunk + j]);
          store(m.dq + at, fma(by_q, product, load(m.dq + at)));
          early = fma(mul(by_q, factor), load(m.q + at), early);
          if (!a.corrects || i == j) continue;
          const vf by_k = broadcast(m.of_lower[i * kChunk + j]);
          store(m.late + at, fma(by_k, product, load(m.late + at)));
          early = fma(mul(by_k, factor), load(m.k + at), early);
        }
        store(m.early + j * d + r, early);
      }
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
