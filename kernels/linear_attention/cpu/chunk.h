// SPDX-License-Identifier: MIT
// A chunk of the gated delta rule from its tokens to the state after it. With G the sums of its gates and S the state before:
//   M = V - exp(G) K S - L U, U = beta M      S = exp(G of the last) S + (exp(G of the last - G) K)^T U
#pragma once

#include "kernels/linear_attention/cpu/decays.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

TILEKILN_INLINE int chunk_tokens(const Delta& a, long long first) {
  return a.tokens - first < kChunk ? int(a.tokens - first) : kChunk;
}

// Queries, keys and numbers of tokens from `first` on.
template <class T> void read_keys(const Delta& a, long long first, int tokens, Chunk& c) {
  c.rows = (tokens + kBlock - 1) / kBlock * kBlock;
  for (int i = 0; i < c.rows; ++i) {
    float *q = c.q + i * c.d, *k = c.k + i * c.d;
    c.beta[i] = c.gate[i] = 0;
    if (i >= tokens) {
      __builtin_memset(q, 0, c.d * sizeof(float));
      __builtin_memset(k, 0, c.d * sizeof(float));
    } else {
      read_key(a, row_of<T>(a.q, first + i), c.d, a.scale, q);
      read_key(a, row_of<T>(a.k, first + i), c.d, 1, k);
      c.beta[i] = beta_of<T>(a, first + i);
      if (!a.by_channel) c.gate[i] = gate_of(a, first + i);
    }
    for (int r = 0; a.by_channel && r < c.d; r += kLanes)
      store(c.gates + i * c.d + r,
            i < tokens ? channel_gates(row_of<float>(a.g, first + i) + r, a.hdim_k - r) : zero());
  }
}

// Rows of an array of values, 0 past the last token.
template <class T> void read_values(const Delta& a, const Heads& of, long long first, int tokens, int rows, int e,
                                    float* to) {
  for (int i = 0; i < rows; ++i) {
    if (i < tokens)
      read_row(row_of<T>(of, first + i), a.hdim_v, e, 1, to + i * e);
    else
      __builtin_memset(to + i * e, 0, e * sizeof(float));
  }
}

inline void relate(const Delta& a, Chunk& c) {
  if (a.by_channel)
    relate_by_channel(a, c);
  else
    relate_by_head(a, c);
}

// Values into what they miss beside the state, and u.
inline void correct(const Delta& a, const float* state, Chunk& c) {
  const int e = c.e;
  if (a.corrects) {
    product<Walk::rows>(c.decayed, c.d, state, e, c.d, c.rows, e,
                        [&](int i, int j, vf sum) __attribute__((always_inline)) {
                          float* p = c.missing + i * e + j;
                          store(p, sub(load(p), sum));
                        });
  }
  for (int b = 0; b < c.rows; b += kBlock) {
    if (b > 0 && a.corrects) {
      product<Walk::rows>(c.lower + b * kChunk, kChunk, c.u, e, b, kBlock, e,
                          [&](int i, int j, vf sum) __attribute__((always_inline)) {
                            float* p = c.missing + (b + i) * e + j;
                            store(p, sub(load(p), sum));
                          });
    }
    for (int j = 0; j < e; j += kLanes) {
      for (int i = b; i < b + kBlock; ++i) {
        vf sum = load(c.missing + i * e + j);
        for (int w = b; w < i && a.corrects; ++w)
          sum = fma(broadcast(-c.lower[i * kChunk + w]), load(c.u + w * e + j), sum);
        store(c.missing + i * e + j, sum);
        store(c.u + i * e + j, mul(broadcast(c.beta[i]), sum));
      }
    }
  }
}

// The state after the chunk from the one before, which may be the same memory.
inline void pass_on(const Chunk& c, const float* from, float* to) {
  product<Walk::columns>(c.k, c.d, c.u, c.e, c.rows, c.d, c.e,
                         [&](int r, int j, vf sum) __attribute__((always_inline)) {
                           store(to + r * c.e + j, fma(broadcast(c.kept[r]), load(from + r * c.e + j), sum));
                         });
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
