// SPDX-License-Identifier: MIT
// Functions from Python in the backward by mma.sync: weights of their logits, the slope of a logit in its score, and
// gradients of the tensors that they read (python/tilekiln/api/functions/emit_device.py).
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/ampere_params.h"
#include "kernels/attention/function/tensor.h"
#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda::fmha_bwd {

#ifdef TILEKILN_FUNCTIONS
using Functions = own::Functions;
template <class Kernel> using Argument = fmha::FunctionBwdParams<Kernel>;
constexpr bool kOwn = true;
#else
struct Functions {};
template <class Kernel> using Argument = Kernel;
constexpr bool kOwn = false;
#endif

// Part of Scores (scores.h), which is `Own`; nothing without functions.
template <class Own, class F, int kRows, bool kThere = kOwn> struct ByFunctions {};
template <class Own, class F, int kRows> struct ByFunctions<Own, F, kRows, true> {
  uint32_t scaled[F::kLearnsByScore ? kRows / 16 : 1][4];  // scores of the warp, 16 bits
  float learned[F::kSums + 1] = {};                        // gradients of elements that all pairs share

  __device__ __forceinline__ Own& own() { return static_cast<Own&>(*this); }
  // Arguments behind AmpereParams, which begin with those of all kernels.
  template <class A> __device__ __forceinline__ const A& given() { return reinterpret_cast<const A&>(own().p); }

  // Calls f with the query, the key and the place in a lane's scores of pairs of rows 16 i + 0..15.
  template <class Each> __device__ __forceinline__ void each_pair(int i, const Each& f) {
#pragma unroll
    for (int u = 0; u < 4; ++u)
#pragma unroll
      for (int e = 0; e < 2; ++e) f(own().row + (2 * i + u / 2) * 8 + e, own().key + u % 2 * 8, 8 * i + 2 * u + e);
  }

  // P = exp(t - lse) for t = score(softmax_scale q k^T), and P t', of which dS is made; 0 for hidden pairs.
  template <class A = Argument<AmpereParams>>
  __device__ __forceinline__ void weigh_by_functions(const float (&score)[kRows / 2], const float* lse_rows) {
    const A& a = given<A>();
    const auto& p = own().p;
    const auto& of = own().t.of;
    const int b = own().sequence(), h = own().head(), first = own().m * kRows;
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      float made[8], bent[8], x[8];
      each_pair(i, [&](int query, int key, int j) {
        const int n = j % 8, distance = key - query - of.shift;  // from the diagonal
        const float lse = lse_rows[query - first];
        const auto held = F::of_query(a.tensor, query, h, b);
        x[n] = score[j] * a.softmax_scale;
        const float logit = F::score(a.tensor, held, x[n], query, key, h, b);
        const bool seen = key < of.seqlen_k && distance <= p.right && (-distance <= p.left || key < p.sink_keys) &&
                          lse < kInfinity && logit != -kInfinity && F::sees(a.tensor, held, query, key, h, b);
        made[n] = seen ? exp2_approx(__fmaf_rn(logit, kLog2E, -lse)) : 0.f;
        bent[n] = made[n] == 0 ? 0.f : made[n] * F::slope(a.tensor, held, x[n], query, key, h, b);
      });
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        own().weight[i][u] = pack(made[2 * u], made[2 * u + 1]);
        own().share[i][u] = pack(bent[2 * u], bent[2 * u + 1]);
        if constexpr (F::kLearnsByScore) scaled[i][u] = pack(x[2 * u], x[2 * u + 1]);
      }
    }
  }

  // Gradients of tensors take dt = P (dP - delta) of rows 16 i + 0..15; those of the elements that all pairs share wait
  // for store_learned.
  template <class A = Argument<AmpereParams>>
  __device__ __forceinline__ void learn(int i, const float (&score)[kRows / 2], const float2 (&delta)[2]) {
    const A& a = given<A>();
    const int b = own().sequence(), h = own().head();
    each_pair(i, [&](int query, int key, int j) {
      const int u = j % 8 / 2, e = j % 2;
      float weight[2], x[2] = {};
      unpack(own().weight[i][u], weight[0], weight[1]);
      if constexpr (F::kLearnsByScore) unpack(scaled[i][u], x[0], x[1]);
      const float dt = weight[e] * (score[j] - (e ? delta[u / 2].y : delta[u / 2].x));
      if (weight[e] != 0) F::learn(a.tensor, a.gradient, x[e], query, key, h, b, dt, learned);
    });
  }
  template <class A = Argument<AmpereParams>> __device__ __forceinline__ void store_learned() {
    const A& a = given<A>();
#pragma unroll
    for (int i = 0; i < F::kSums; ++i)
#pragma unroll
      for (int by = 16; by > 0; by /= 2) learned[i] += __shfl_xor_sync(~0u, learned[i], by);
    if (fresh_lane() == 0) F::store(a.tensor, a.gradient, own().head(), own().sequence(), learned);
  }
};

}  // namespace tilekiln::cuda::fmha_bwd
