// SPDX-License-Identifier: MIT
// The chunks engine of gated_delta_rule for one target: out = exp(G) Q S + A U, A the lower triangle of decayed products of queries and keys.
#include "kernels/linear_attention/cpu/chunk.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

inline void read_out(const float* state, Chunk& c) {
  const int e = c.e;
  product<Walk::rows>(c.q, c.d, state, e, c.d, c.rows, e,
                      [&](int i, int j, vf sum) __attribute__((always_inline)) { store(c.out + i * e + j, sum); });
  for (int b = 0; b < c.rows; b += kBlock) {
    if (b > 0) {
      product<Walk::rows>(c.attended + b * kChunk, kChunk, c.u, e, b, kBlock, e,
                          [&](int i, int j, vf sum) __attribute__((always_inline)) {
                            float* p = c.out + (b + i) * e + j;
                            store(p, add(load(p), sum));
                          });
    }
    for (int j = 0; j < e; j += kLanes) {
      for (int i = b; i < b + kBlock; ++i) {
        vf sum = load(c.out + i * e + j);
        for (int w = b; w <= i; ++w) sum = fma(broadcast(c.attended[i * kChunk + w]), load(c.u + w * e + j), sum);
        store(c.out + i * e + j, sum);
      }
    }
  }
}

template <class T> void head(const Delta& whole, long long sequence, int number, float* state) {
  const Delta a = head_of<T>(whole, sequence, number);
  Chunk c;
  c.place(a, state + linear_attention::delta_padded(a.hdim_k) * linear_attention::delta_padded(a.hdim_v));
  read_state(a, a.past, c.d, c.e, state);
  for (long long first = 0; first < a.tokens; first += kChunk) {
    const int tokens = chunk_tokens(a, first);
    read_keys<T>(a, first, tokens, c);
    read_values<T>(a, a.v, first, tokens, c.rows, c.e, c.missing);
    relate(a, c);
    meet_the_state(a, c);
    correct(a, state, c);
    read_out(state, c);
    for (int i = 0; i < tokens; ++i) write_row(row_of<T>(a.out, first + i), c.out + i * c.e, a.hdim_v);
    pass_on(c, state, state);
  }
  if (a.last.data) write_state(a, a.last, c.e, state);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _gated_delta_rule_chunks)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::linear_attention::DeltaEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::head<float>, tilekiln::cpu::head<tilekiln::cpu::fp16>, tilekiln::cpu::head<tilekiln::cpu::bf16>}};
