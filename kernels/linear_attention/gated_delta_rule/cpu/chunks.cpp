// The chunks engine of gated_delta_rule for one target. Of a chunk, with G the sums of its gates and S the state before it:
//   (1 + L) U = beta (V - exp(G) K S)      out = exp(G) Q S + A U      S = exp(G of the last) S + (exp(G of the last - G) K)^T U
// L and A, in decays.h, are lower triangles of products of keys and queries.
#include "kernels/linear_attention/gated_delta_rule/cpu/decays.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// Rows of `to` get sign times the lower triangle of `by` times those of u, in order: row i of rows before it, and with the diagonal of itself.
template <bool kDiagonal> void add_lower(const float* by, float sign, const float* u, int e, int rows, float* to) {
  const vf factor = broadcast(sign);
  for (int b = 0; b < rows; b += kBlock) {
    if (b > 0) {
      product<Walk::rows>(by + b * kChunk, kChunk, u, e, b, kBlock, e,
                          [&](int i, int j, vf sum) __attribute__((always_inline)) {
                            float* p = to + (b + i) * e + j;
                            store(p, fma(factor, sum, load(p)));
                          });
    }
    for (int j = 0; j < e; j += kLanes) {
      for (int i = b; i < b + kBlock; ++i) {
        vf sum = load(to + i * e + j);
        for (int w = b; w < i + kDiagonal; ++w)
          sum = fma(broadcast(sign * by[i * kChunk + w]), load(u + w * e + j), sum);
        store(to + i * e + j, sum);
      }
    }
  }
}

template <class T> void read_chunk(const Delta& a, long long batch, int head, long long first, int tokens, Chunk& c) {
  c.rows = (tokens + kBlock - 1) / kBlock * kBlock;
  const int key_head = head / a.group;
  for (int i = 0; i < c.rows; ++i) {
    float *q = c.q + i * c.d, *k = c.k + i * c.d, *v = c.u + i * c.e;
    c.beta[i] = c.gate[i] = 0;
    if (i >= tokens) {
      __builtin_memset(q, 0, c.d * sizeof(float));
      __builtin_memset(k, 0, c.d * sizeof(float));
      __builtin_memset(v, 0, c.e * sizeof(float));
    } else {
      const long long t = first + i;
      read_key(a, row_of<T>(a.q, batch, t, key_head), c.d, a.scale, q);
      read_key(a, row_of<T>(a.k, batch, t, key_head), c.d, 1, k);
      read_row(row_of<T>(a.v, batch, t, head), a.hdim_v, c.e, 1, v);
      c.beta[i] = beta_of<T>(a, batch, t, head);
      if (!a.by_channel) c.gate[i] = gate_of(a, batch, t, head);
    }
    for (int r = 0; a.by_channel && r < c.d; r += kLanes) {
      const float* p = row_of<float>(a.g, batch, first + i, head) + r;
      store(c.gates + i * c.d + r, i < tokens ? channel_gates(p, a.hdim_k - r) : zero());
    }
  }
}

template <class T> void head(const Delta& a, long long batch, int number, float* scratch) {
  Chunk c;
  c.d = int(linear_attention::delta_padded(a.hdim_k)), c.e = int(linear_attention::delta_padded(a.hdim_v));
  float* state = scratch;
  float* at = state + c.d * c.e;
  const auto take = [&](int size) __attribute__((always_inline)) { return at += size, at - size; };
  c.q = take(kChunk * c.d), c.k = take(kChunk * c.d), c.turned = take(kChunk * c.d), c.decayed = take(kChunk * c.d);
  c.gates = take(kChunk * c.d), c.some = take(2 * kBlock * c.d);
  c.beta = take(kChunk), c.gate = take(kChunk);
  c.u = take(kChunk * c.e), c.out = take(kChunk * c.e), c.lower = take(kChunk * kChunk),
  c.attended = take(kChunk * kChunk);
  read_state(a, batch, number, c.d, c.e, state);
  for (long long first = 0; first < a.tokens; first += kChunk) {
    const int tokens = a.tokens - first < kChunk ? int(a.tokens - first) : kChunk;
    read_chunk<T>(a, batch, number, first, tokens, c);
    if (a.by_channel)
      relate_by_channel(c);
    else
      relate_by_head(c);
    meet_the_state(a, c);
    product<Walk::rows>(c.decayed, c.d, state, c.e, c.d, c.rows, c.e,
                        [&](int i, int j, vf sum) __attribute__((always_inline)) {
                          float* u = c.u + i * c.e + j;
                          store(u, mul(broadcast(c.beta[i]), sub(load(u), sum)));
                        });
    product<Walk::rows>(c.q, c.d, state, c.e, c.d, c.rows, c.e,
                        [&](int i, int j, vf sum) __attribute__((always_inline)) { store(c.out + i * c.e + j, sum); });
    add_lower<false>(c.lower, -1, c.u, c.e, c.rows, c.u);
    add_lower<true>(c.attended, 1, c.u, c.e, c.rows, c.out);
    for (int i = 0; i < tokens; ++i) write_out<T>(a, batch, first + i, number, c.out + i * c.e);
    product<Walk::columns>(c.k, c.d, c.u, c.e, c.rows, c.d, c.e,
                           [&](int r, int j, vf sum) __attribute__((always_inline)) {
                             float* s = state + r * c.e + j;
                             store(s, fma(broadcast(c.kept[r]), load(s), sum));
                           });
  }
  if (a.last.data) write_state(a, batch, number, c.e, state);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _gated_delta_rule_chunks)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::linear_attention::DeltaEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::head<float>, tilekiln::cpu::head<tilekiln::cpu::fp16>, tilekiln::cpu::head<tilekiln::cpu::bf16>}};
