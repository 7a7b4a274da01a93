// SPDX-License-Identifier: MIT
// The steps engine of gated_delta_rule for one target: of each token, with w = exp(g),
//   u = beta (v - (w k)^T S), or beta v      out = (w q)^T S + (q k) u      S = w S + k u^T
// A pass reads some columns of S for both products, a second one writes them.
#include "kernels/linear_attention/cpu/tokens.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

struct State {
  float* data;
  long long row;
};

// One token: q, k as they are and times what is kept, and that itself, a number a row.
struct Token {
  alignas(64) float q[linear_attention::kDeltaMost], k[linear_attention::kDeltaMost],
      kept[linear_attention::kDeltaMost];
  alignas(64) float kept_q[linear_attention::kDeltaMost], kept_k[linear_attention::kDeltaMost],
      out[linear_attention::kDeltaMost];
  float beta, together;  // together: q k
};

template <class T> void read_token(const Delta& a, long long t, int d, Token& to) {
  read_key(a, row_of<T>(a.q, t), d, a.scale, to.q);
  read_key(a, row_of<T>(a.k, t), d, 1, to.k);
  to.beta = beta_of<T>(a, t);
  const vf gate = broadcast(a.by_channel ? 0 : gate_of(a, t));
  vf together = zero();
  for (int r = 0; r < d; r += kLanes) {
    const vf q = load(to.q + r), k = load(to.k + r);
    const vf kept = decay(a.by_channel ? channel_gates(row_of<float>(a.g, t) + r, a.hdim_k - r) : gate);
    store(to.kept + r, kept);
    store(to.kept_q + r, mul(kept, q));
    store(to.kept_k + r, mul(kept, k));
    together = fma(q, k, together);
  }
  to.together = total(together);
}

// N vectors of columns of the state, from one place to another, which may be the same; without `to`, none.
template <int N, bool kCorrects> TILEKILN_INLINE void step(int rows, Token& token, const vf* v, const State& from,
                                                           const State& to, int column) {
  vf of_k[N], of_q[N];
  TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) of_k[j] = of_q[j] = zero();
  for (int r = 0; r < rows; ++r) {
    const vf k = broadcast(token.kept_k[r]), q = broadcast(token.kept_q[r]);
    TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) {
      const vf s = load_unaligned(from.data + r * from.row + column + j * kLanes);
      if constexpr (kCorrects) of_k[j] = fma(k, s, of_k[j]);
      of_q[j] = fma(q, s, of_q[j]);
    }
  }
  vf u[N];
  TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) {
    u[j] = mul(broadcast(token.beta), sub(v[j], of_k[j]));
    store(token.out + column + j * kLanes, fma(broadcast(token.together), u[j], of_q[j]));
  }
  if (!to.data) return;
  for (int r = 0; r < rows; ++r) {
    const vf k = broadcast(token.k[r]), kept = broadcast(token.kept[r]);
    TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) {
      const vf s = load_unaligned(from.data + r * from.row + column + j * kLanes);
      store_unaligned(to.data + r * to.row + column + j * kLanes, fma(k, u[j], mul(kept, s)));
    }
  }
}

template <class T, bool kCorrects> void run(const Delta& a, float* scratch) {
  const int d = int(linear_attention::delta_padded(a.hdim_k)), e = int(linear_attention::delta_padded(a.hdim_v));
  const State own = {scratch, e}, none = {nullptr, 0};
  // Rows of whole vectors are read and written where they lie.
  const bool whole = a.hdim_v % kLanes == 0;
  State from = whole && a.past.data ? State{(float*)a.past.data, a.past.token} : own;
  if (from.data == own.data || a.tokens == 0) read_state(a, a.past, d, e, scratch);
  Token token;
  for (long long t = 0; t < a.tokens; ++t) {
    const bool last = t + 1 == a.tokens;
    const State to = !last ? own : !a.last.data ? none : whole ? State{(float*)a.last.data, a.last.token} : own;
    read_token<T>(a, t, d, token);
    const T* p = row_of<T>(a.v, t);
    const auto columns = [&]<int N>(int c) __attribute__((always_inline)) {
      vf v[N];
      TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) {
        const int left = a.hdim_v - c - j * kLanes;
        v[j] = left > 0 ? widen_some(p + c + j * kLanes, left) : zero();
      }
      step<N, kCorrects>(a.hdim_k, token, v, from, to, c);
    };
    int c = 0;
    const int width = (a.hdim_v + kLanes - 1) / kLanes * kLanes;
    for (; c + 4 * kLanes <= width; c += 4 * kLanes) columns.template operator()<4>(c);
    for (; c < width; c += kLanes) columns.template operator()<1>(c);
    write_row(row_of<T>(a.out, t), token.out, a.hdim_v);
    from = to;
  }
  if (a.last.data && (!whole || a.tokens == 0)) write_state(a, a.last, e, scratch);
}

template <class T> void head(const Delta& whole, long long sequence, int number, float* scratch) {
  const Delta a = head_of<T>(whole, sequence, number);
  a.corrects ? run<T, true>(a, scratch) : run<T, false>(a, scratch);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _gated_delta_rule_steps)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::linear_attention::DeltaEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::head<float>, tilekiln::cpu::head<tilekiln::cpu::fp16>, tilekiln::cpu::head<tilekiln::cpu::bf16>}};
