// SPDX-License-Identifier: MIT
// The chunks engine of gated_delta_rule_bwd for one target. A first pass keeps the state before each chunk and what its tokens miss;
// a second one goes from the last chunk to the first with the gradient of the state after it, D. In a chunk, with dO of out:
//   dU = A^T dO + K" D      (1 + L)^T X = dU      Y = beta X      dV = Y      dbeta = rows of X M
//   D = exp(G of the last) D + Q'^T dO - K'^T Y
// where Q' and K' are as they meet the state, K" what it gets; gradients of products of tokens are in decays_backward.h.
#include "kernels/linear_attention/gated_delta_rule_bwd/cpu/decays_backward.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

using linear_attention::DeltaGradients;

// The arrays of a call at one head of v of one sequence.
template <class T> DeltaGradients gradients_of(const DeltaGradients& whole, long long sequence, int head) {
  DeltaGradients a = whole;
  const auto [batch, first] = place_of(whole.made, sequence);
  const int key = head / whole.made.group;
  a.made = head_of<T>(whole.made, sequence, head);
  a.of = moved<T>(a.of, batch, first, head), a.v = moved<T>(a.v, batch, first, head);
  a.q = moved<T>(a.q, batch, first, key), a.k = moved<T>(a.k, batch, first, key);
  a.g = moved<float>(a.g, batch, first, head);
  a.beta = a.made.wide_beta ? moved<float>(a.beta, batch, first, head) : moved<T>(a.beta, batch, first, head);
  a.last_of = moved<float>(a.last_of, sequence, 0, head), a.past = moved<float>(a.past, sequence, 0, head);
  return a;
}

// X over dU, and y.
inline void solve_turned(const Delta& a, const Chunk& c, float* x, float* y) {
  const int e = c.e;
  for (int b = c.rows - kBlock; b >= 0; b -= kBlock) {
    const int after = b + kBlock;
    if (after < c.rows && a.corrects) {
      product<Walk::columns>(c.lower + after * kChunk + b, kChunk, y + after * e, e, c.rows - after, kBlock, e,
                             [&](int i, int j, vf sum) __attribute__((always_inline)) {
                               float* p = x + (b + i) * e + j;
                               store(p, sub(load(p), sum));
                             });
    }
    for (int j = 0; j < e; j += kLanes) {
      for (int i = after - 1; i >= b; --i) {
        vf sum = load(x + i * e + j);
        for (int w = i + 1; w < after && a.corrects; ++w)
          sum = fma(broadcast(-c.lower[w * kChunk + i]), load(y + w * e + j), sum);
        store(x + i * e + j, sum);
        store(y + i * e + j, mul(broadcast(c.beta[i]), sum));
      }
    }
  }
}

// dU of rows of dO and the gradient of the state.
inline void gradient_of_u(const Chunk& c, const float* of, const float* state, float* to) {
  const int e = c.e;
  product<Walk::rows>(c.k, c.d, state, e, c.d, c.rows, e,
                      [&](int i, int j, vf sum) __attribute__((always_inline)) { store(to + i * e + j, sum); });
  for (int b = 0; b < c.rows; b += kBlock) {
    product<Walk::columns>(c.attended + b * kChunk + b, kChunk, of + b * e, e, c.rows - b, kBlock, e,
                           [&](int i, int j, vf sum) __attribute__((always_inline)) {
                             float* p = to + (b + i) * e + j;
                             store(p, add(load(p), sum));
                           });
  }
}

// The lower triangle of sign times the products of rows of `left` with rows whose turned matrix is `right`.
template <bool kDiagonal> void lower_products(const float* left, const float* right, float sign, int e, int rows,
                                              float* to) {
  for (int b = 0; b < rows; b += kBlock) {
    product<Walk::rows>(left + b * e, e, right, kChunk, e, kBlock, b + kBlock,
                        [&](int i, int j, vf sum) __attribute__((always_inline)) {
                          store(to + (b + i) * kChunk + j, mul(broadcast(sign), sum));
                        });
  }
  clear_upper<kDiagonal>(rows, to);
}

// The gradient of a row of queries or keys by that of what was read of it, times `by`.
template <class T> void write_key(const Delta& a, const T* given, const float* from, float by, T* to) {
  float times = by, along = 0;
  if (a.normalise) {
    vf squares = zero(), dot = zero();
    for (int c = 0; c < a.hdim_k; c += kLanes) {
      const vf x = widen_some(given + c, a.hdim_k - c);
      squares = fma(x, x, squares), dot = fma(x, load(from + c), dot);
    }
    const float inverse = 1 / __builtin_sqrtf(total(squares) + kSquares);
    times = by * inverse, along = -times * inverse * inverse * total(dot);
  }
  for (int c = 0; c < a.hdim_k; c += kLanes) {
    const vf x = widen_some(given + c, a.hdim_k - c);
    narrow_some(to + c, fma(broadcast(along), x, mul(broadcast(times), load(from + c))), a.hdim_k - c);
  }
}

// Gradients of gates: of a sum of gates up to a token, the queries and late keys from it on less its early key, and the state's.
inline void write_gates(const Delta& a, const Heads& to, long long first, int tokens, const Chunk& c, const Meetings& m,
                        const float* of_state) {
  float* sums = c.gates;  // a row a token, of all channels
  for (int r = 0; r < c.d; r += kLanes) {
    vf sum = load(of_state + r);
    for (int i = c.rows - 1; i >= 0; --i) {
      const int at = i * c.d + r;
      sum = fma(load(m.q + at), load(m.dq + at), sum);
      sum = fma(load(m.k + at), sub(load(m.late + at), load(m.early + at)), sum);
      store(sums + at, sum);
    }
  }
  for (int i = 0; i < tokens; ++i) {
    const float* given = row_of<float>(a.g, first + i);
    float *row = row_of<float>(to, first + i), *of = sums + i * c.d;
    if (a.by_channel) {
      for (int r = 0; r < a.hdim_k; ++r) row[r] = given[r] < kLeastGate ? 0 : of[r];
    } else {
      vf sum = zero();
      for (int r = 0; r < c.d; r += kLanes) sum = add(sum, load(of + r));
      *row = *given < kLeastGate ? 0 : total(sum);
    }
  }
}

// Gradients of queries and keys as they met the state and its gradient, both turned: once for all dtypes, as what follows.
inline void met_backward(const Delta& a, const Chunk& c, const float* y, const float* turned, const float* turned_of,
                         Meetings& m) {
  const int d = c.d, e = c.e;
  product<Walk::rows>(c.out, e, turned, d, e, c.rows, d,
                      [&](int i, int r, vf sum) __attribute__((always_inline)) { store(m.dq + i * d + r, sum); });
  product<Walk::rows>(c.u, e, turned_of, d, e, c.rows, d,
                      [&](int i, int r, vf sum) __attribute__((always_inline)) { store(m.early + i * d + r, sum); });
  if (!a.corrects) {
    __builtin_memset(m.late, 0, c.rows * d * sizeof(float));
    return;
  }
  product<Walk::rows>(y, e, turned, d, e, c.rows, d, [&](int i, int r, vf sum) __attribute__((always_inline)) {
    store(m.late + i * d + r, sub(zero(), sum));
  });
}

// The gradient of the state before a chunk, over that of the state after it.
inline void state_backward(const Delta& a, const Chunk& c, const float* y, float* of_state) {
  const int d = c.d, e = c.e;
  product<Walk::columns>(c.q, d, c.out, e, c.rows, d, e, [&](int r, int j, vf sum) __attribute__((always_inline)) {
    float* p = of_state + r * e + j;
    store(p, fma(broadcast(c.kept[r]), load(p), sum));
  });
  if (!a.corrects) return;
  product<Walk::columns>(c.decayed, d, y, e, c.rows, d, e, [&](int r, int j, vf sum) __attribute__((always_inline)) {
    float* p = of_state + r * e + j;
    store(p, sub(load(p), sum));
  });
}

// Rows of products of two arrays, summed.
inline void row_products(const float* a, const float* b, int rows, int width, float* to) {
  for (int r = 0; r < rows; ++r) {
    vf sum = zero();
    for (int c = 0; c < width; c += kLanes) sum = fma(load(a + r * width + c), load(b + r * width + c), sum);
    to[r] = total(sum);
  }
}

// One head of v. shared: gradients of keys of the heads before it, two arrays a chunk; null where heads share none.
template <class T> void head(const DeltaGradients& g, float* scratch, float* shared, bool first_head, bool last_head) {
  const Delta& a = g.made;
  const int d = int(linear_attention::delta_padded(a.hdim_k)), e = int(linear_attention::delta_padded(a.hdim_v));
  const long long chunks = linear_attention::delta_chunks(a.tokens), size = (long long)d * e;
  float *states = scratch, *missing = states + (chunks + 1) * size, *at = missing + chunks * kChunk * e;
  Chunk c;
  at = c.place(a, at);
  const auto take = [&](long long n) __attribute__((always_inline)) { return at += n, at - n; };
  Meetings m;
  m.q = take(kChunk * d), m.k = take(kChunk * d), m.dq = take(kChunk * d), m.late = take(kChunk * d),
  m.early = take(kChunk * d), m.fading = take(kChunk * d);
  float *x = take(kChunk * e), *y = take(kChunk * e), *turned_u = take(kChunk * e);
  m.of_attended = take(kChunk * kChunk), m.of_lower = take(kChunk * kChunk);
  float *of_state = take(size), *turned = take(size), *turned_of = take(size);
  alignas(64) float of_gates[linear_attention::kDeltaMost], of_beta[kChunk];
  read_state(a, a.past, d, e, states);
  for (long long n = 0; n < chunks; ++n) {
    const int tokens = chunk_tokens(a, n * kChunk);
    read_keys<T>(a, n * kChunk, tokens, c);
    c.missing = missing + n * kChunk * e;
    read_values<T>(a, a.v, n * kChunk, tokens, c.rows, e, c.missing);
    relate(a, c);
    meet_the_state(a, c);
    correct(a, states + n * size, c);
    pass_on(c, states + n * size, states + (n + 1) * size);
  }
  read_state(a, g.last_of, d, e, of_state);
  for (long long n = chunks - 1; n >= 0; --n) {
    const long long first = n * kChunk;
    const int tokens = chunk_tokens(a, first);
    const float* state = states + n * size;
    read_keys<T>(a, first, tokens, c);
    relate(a, c);
    clear_upper<true>(c.rows, c.attended);
    __builtin_memcpy(m.q, c.q, c.rows * d * sizeof(float));
    __builtin_memcpy(m.k, c.k, c.rows * d * sizeof(float));
    meet_the_state(a, c);
    c.missing = missing + first * e;
    for (int i = 0; i < c.rows; ++i) {
      for (int j = 0; j < e; j += kLanes)
        store(c.u + i * e + j, mul(broadcast(c.beta[i]), load(c.missing + i * e + j)));
    }
    read_values<T>(a, g.of, first, tokens, c.rows, e, c.out);
    gradient_of_u(c, c.out, of_state, x);
    solve_turned(a, c, x, y);
    row_products(x, c.missing, c.rows, e, of_beta);
    for (int i = 0; i < tokens; ++i) {
      write_row(row_of<T>(g.v, first + i), y + i * e, a.hdim_v);
      if (a.wide_beta)
        *row_of<float>(g.beta, first + i) = of_beta[i];
      else
        narrow_some(row_of<T>(g.beta, first + i), broadcast(of_beta[i]), 1);
    }
    row_products(states + (n + 1) * size, of_state, d, e, of_gates);
    turn(c.u, e, c.rows, turned_u);
    lower_products<true>(c.out, turned_u, 1, e, c.rows, m.of_attended);
    if (a.corrects) lower_products<false>(y, turned_u, -1, e, c.rows, m.of_lower);
    turn(state, e, d, turned, d), turn(of_state, e, d, turned_of, d);
    met_backward(a, c, y, turned, turned_of, m);
    state_backward(a, c, y, of_state);
    meetings_backward(a, c, m);
    write_gates(a, g.g, first, tokens, c, m, of_gates);
    float* before = shared ? shared + 2 * first * d : nullptr;
    for (int i = 0; i < tokens; ++i) {
      float *q = m.dq + i * d, *k = m.late + i * d, *of = before ? before + 2 * i * d : nullptr;
      for (int r = 0; r < d; r += kLanes) {
        store(k + r, add(load(k + r), load(m.early + i * d + r)));
        if (first_head) continue;
        store(q + r, add(load(q + r), load(of + r)));
        store(k + r, add(load(k + r), load(of + d + r)));
      }
      if (last_head) {
        write_key(a, row_of<const T>(a.q, first + i), q, a.scale, row_of<T>(g.q, first + i));
        write_key(a, row_of<const T>(a.k, first + i), k, 1, row_of<T>(g.k, first + i));
      } else {
        __builtin_memcpy(of, q, d * sizeof(float));
        __builtin_memcpy(of + d, k, d * sizeof(float));
      }
    }
  }
  if (g.past.data) write_state(a, g.past, e, of_state);
}

template <class T> void keys(const DeltaGradients& whole, long long sequence, int number, float* scratch) {
  const int group = whole.made.group;
  float* shared = nullptr;
  for (int i = 0; i < group; ++i) {
    const DeltaGradients g = gradients_of<T>(whole, sequence, number * group + i);
    const long long room = linear_attention::delta_gradients_scratch(g.made.tokens, 1, g.made.hdim_k, g.made.hdim_v);
    if (group > 1) shared = scratch + room;
    head<T>(g, scratch, shared, i == 0, i + 1 == group);
  }
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _gated_delta_rule_bwd_chunks)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::linear_attention::DeltaGradientsEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::keys<float>, tilekiln::cpu::keys<tilekiln::cpu::fp16>, tilekiln::cpu::keys<tilekiln::cpu::bf16>}};
