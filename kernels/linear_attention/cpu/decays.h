// SPDX-License-Identifier: MIT
// Products of keys with keys and with queries of a chunk, each times what is kept from one token to the other. No difference of sums of gates
// is taken: a sum is made from the tokens between.
#pragma once

#include "kernels/linear_attention/cpu/product.h"
#include "kernels/linear_attention/cpu/tokens.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// A chunk in scratch: rows of d and e numbers, `rows` of them, a multiple of kBlock; those past the last token are 0.
struct Chunk {
  float *q, *k, *turned, *decayed, *gates,
      *some;                 // turned: k^T; decayed: k as it meets the state; some: 4 kBlock rows for a moment
  float *missing, *u, *out;  // of values; missing: v less what the state and the tokens before tell; u: beta times that
  float *lower, *attended;   // what missing and out take of u: products of a key with a key and with a query
  int d, e, rows;
  float *beta, *gate;                                    // a number a token
  alignas(64) float kept[linear_attention::kDeltaMost];  // of the state, a number a row

  // Memory for it from `at` on; what follows.
  float* place(const Delta& a, float* at) {
    d = int(linear_attention::delta_padded(a.hdim_k)), e = int(linear_attention::delta_padded(a.hdim_v));
    const auto take = [&](int size) __attribute__((always_inline)) { return at += size, at - size; };
    q = take(kChunk * d), k = take(kChunk * d), turned = take(kChunk * d), decayed = take(kChunk * d);
    gates = take(kChunk * d), some = take(kChunk * d), beta = take(kChunk), gate = take(kChunk);
    missing = take(kChunk * e), u = take(kChunk * e), out = take(kChunk * e);
    lower = take(kChunk * kChunk), attended = take(kChunk * kChunk);
    return at;
  }
};

// `rows` rows of d numbers, turned: a column a row.
TILEKILN_INLINE void turn(const float* from, int d, int rows, float* to, int to_row = kChunk) {
  for (int c = 0; c < rows; c += kLanes) {
    for (int r = 0; r < d; r += kLanes) {
      vf x[kLanes];
      TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) x[i] = load(from + (c + i) * d + r);
      transpose(x);
      TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) store(to + (r + i) * to_row + c, x[i]);
    }
  }
}

// Gates of a head: decays between two tokens are a matrix, from which both products take their factors.
inline void relate_by_head(const Delta& a, Chunk& c) {
  for (int i = 0; i < c.rows; ++i) {
    for (int j = 0; j < c.rows; j += kLanes) {
      const vf before = i > 0 ? load(c.lower + (i - 1) * kChunk + j) : zero();
      const int others = i - j;  // tokens before i among the lanes
      const lane_bits here = lane_bits(others >= kLanes ? (1u << kLanes) - 1 : others <= 0 ? 0 : (1u << others) - 1);
      store(c.lower + i * kChunk + j, keep_if(here, add(before, broadcast(c.gate[i]))));
    }
  }
  turn(c.k, c.d, c.rows, c.turned);
  for (int b = 0; b < c.rows; b += kBlock) {
    float *lower = c.lower + b * kChunk, *attended = c.attended + b * kChunk;
    product<Walk::rows>(c.q + b * c.d, c.d, c.turned, kChunk, c.d, kBlock, b + kBlock,
                        [&](int i, int j, vf sum) __attribute__((always_inline)) {
                          store(attended + i * kChunk + j, mul(decay(load(lower + i * kChunk + j)), sum));
                        });
    if (!a.corrects) continue;
    product<Walk::rows>(c.k + b * c.d, c.d, c.turned, kChunk, c.d, kBlock, b + kBlock,
                        [&](int i, int j, vf sum) __attribute__((always_inline)) {
                          store(lower + i * kChunk + j, mul(decay(load(lower + i * kChunk + j)), sum));
                        });
  }
}

// Gates of channels. Tokens of two blocks meet by way of the first token of the later one, so that no factor is above 1;
// those of one block meet pair by pair.
inline void relate_by_channel(const Delta& a, Chunk& c) {
  float *queries = c.some, *keys = c.some + kBlock * c.d;
  for (int b = 0; b < c.rows; b += kBlock) {
    float *lower = c.lower + b * kChunk, *attended = c.attended + b * kChunk;
    for (int r = 0; b > 0 && r < c.d; r += kLanes) {
      vf kept = zero();  // from the block's first token's past on
      for (int i = 0; i < kBlock; ++i) {
        kept = add(kept, load(c.gates + (b + i) * c.d + r));
        const vf factor = decay(kept);
        store(queries + i * c.d + r, mul(factor, load(c.q + (b + i) * c.d + r)));
        store(keys + i * c.d + r, mul(factor, load(c.k + (b + i) * c.d + r)));
      }
      kept = zero();
      for (int j = b - 1; j >= 0; --j) {
        store(c.decayed + j * c.d + r, mul(decay(kept), load(c.k + j * c.d + r)));
        kept = add(kept, load(c.gates + j * c.d + r));
      }
    }
    if (b > 0) {
      turn(c.decayed, c.d, b, c.turned);
      product<Walk::rows>(queries, c.d, c.turned, kChunk, c.d, kBlock, b,
                          [&](int i, int j, vf sum)
                              __attribute__((always_inline)) { store(attended + i * kChunk + j, sum); });
      if (a.corrects) {
        product<Walk::rows>(keys, c.d, c.turned, kChunk, c.d, kBlock, b,
                            [&](int i, int j, vf sum)
                                __attribute__((always_inline)) { store(lower + i * kChunk + j, sum); });
      }
    }
    for (int j = b; j < b + kBlock; ++j) {
      vf kept[linear_attention::kDeltaMost / kLanes];
      for (int r = 0; r < c.d; r += kLanes) kept[r / kLanes] = zero();
      for (int i = j; i < b + kBlock; ++i) {
        vf of_q = zero(), of_k = zero();
        for (int r = 0; r < c.d; r += kLanes) {
          vf& sum = kept[r / kLanes];
          if (i > j) sum = add(sum, load(c.gates + i * c.d + r));
          const vf key = mul(decay(sum), load(c.k + j * c.d + r));
          of_q = fma(key, load(c.q + i * c.d + r), of_q), of_k = fma(key, load(c.k + i * c.d + r), of_k);
        }
        c.attended[i * kChunk + j] = total(of_q);
        c.lower[i * kChunk + j] = total(of_k);
      }
    }
  }
}

// Turns q and k into what meets the state before the chunk (q, decayed) and after it (k), and sets kept.
inline void meet_the_state(const Delta& a, Chunk& c) {
  for (int r = 0; r < c.d; r += kLanes) {
    const auto gate = [&](int i) __attribute__((always_inline)) {
      return a.by_channel ? load(c.gates + i * c.d + r) : broadcast(c.gate[i]);
    };
    vf sum = zero();
    for (int i = 0; i < c.rows; ++i) {
      sum = add(sum, gate(i));
      const vf factor = decay(sum);
      store(c.q + i * c.d + r, mul(factor, load(c.q + i * c.d + r)));
      store(c.decayed + i * c.d + r, mul(factor, load(c.k + i * c.d + r)));
    }
    store(c.kept + r, decay(sum));
    sum = zero();
    for (int i = c.rows - 1; i >= 0; --i) {
      store(c.k + i * c.d + r, mul(decay(sum), load(c.k + i * c.d + r)));
      sum = add(sum, gate(i));
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
