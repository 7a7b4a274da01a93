// SPDX-License-Identifier: MIT
// The backward of attention with functions from Python: the chunks of the backward engine, whose gradients the functions are. With
// t = score(s), S = softmax_scale q k^T:  P = exp(t - LSE)  dt = P o (dP - D)  dS = dt t'(S)  d tensor[i] = sum of dt dt/d tensor[i]
// Of weights, in place of the softmax:  P = t  dt = dP, of the pairs that are seen
#pragma once

#include "kernels/attention/cpu/qlanes_bwd/backward.h"
#include "kernels/attention/function/lanes.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using fmha::FunctionBwdProblem;

// Adds to a sum that other threads may add to.
inline void add_shared(double& sum, double x, bool alone) {
  if (alone) {
    sum += x;
    return;
  }
  double seen, made;
  __atomic_load(&sum, &seen, __ATOMIC_RELAXED);
  do made = seen + x;
  while (!__atomic_compare_exchange(&sum, &seen, &made, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

TILEKILN_INLINE double sum_of(vfloat x) {
  double sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += double(x[i]);
  return sum;
}

// The gradient of the element at indices that all lanes share, or of one for each lane, takes x.
template <class... Index>
inline void add_gradient(const FunctionBwdProblem& a, int tensor, vfloat x, Index... index) {
  const fmha::FunctionGradient& to = a.gradient[tensor];
  const auto place = [&](int lane) {
    i64 at = 0;
    int d = 0;
    ((at += to.step[d] * within(at_lane(index, lane), a.tensor[tensor].count[d]), ++d), ...);
    return at;
  };
  if constexpr ((__is_same(Index, int) && ...)) {
    add_shared(to.sums[place(0)], sum_of(x), a.alone);
  } else {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (x[lane] != 0) add_shared(to.sums[place(lane)], double(x[lane]), a.alone);
    }
  }
}

// P of a pair and dt, of which a pair without weight has none.
struct Weighed {
  vf p;
  vfloat dt;
};

// function(key, s, weigh) says P and dS of a key from its raw scores; weigh(t) is what a logit t makes.
template <class Compute, bool kWeights = false, class Function>
TILEKILN_INLINE void function_gradients(BwdScratch& w, const Gradients& g, int j, const KeyRange& range,
                                        const Edges& edges, const lane_bits* seen, Function&& function) {
  const int q = j * kLanes;
  const vf c = broadcast(g.c), lse = load(w.lse + q), delta = load(w.delta + q);
  for (int key = range.begin; key < range.end; key += 2) {
    PairGradients made[2];
    for (int i = 0; i < 2; ++i) {
      const int one = key + i;
      const vf dp = load(w.dp + one * kTileQ + q);
      made[i] = function(one, load(w.s + one * kTileQ + q), [&](vfloat t) -> Weighed {
        if constexpr (kWeights) {
          lane_bits bits = one >= edges.keys ? lane_bits(0) : lane_bits(~0);
          if (bits && (seen || one < range.all_begin || one >= range.all_end))
            bits = lane_bits(edges.lanes(q, one) & (seen ? seen[j * kTileK + one] : lane_bits(~0)));
          return {keep_if(bits, same_bits<vf>(t)), same_bits<vfloat>(keep_if(bits, dp))};
        }
        vf p = exp2<Compute::kExp2Degree>(min(zero(), fms(same_bits<vf>(t), c, lse)));
        if (one >= edges.keys) {
          p = zero();
        } else if (seen || one < range.all_begin || one >= range.all_end) {
          p = keep_if(edges.lanes(q, one) & (seen ? seen[j * kTileK + one] : lane_bits(~0)), p);
        }
        const vfloat weight = choose(t == -kInfinity, vfloat{}, same_bits<vfloat>(p));
        p = same_bits<vf>(weight);
        return {p, choose(weight == 0, vfloat{}, same_bits<vfloat>(mul(p, sub(dp, delta))))};
      });
    }
    put_gradients<Compute>(w, false, i64(key) * kTileQ + q, made[0], made[1]);
  }
}

// dt times a derivative, which may be no number where there is no weight.
TILEKILN_INLINE vfloat weighed(vfloat dt, vfloat derivative) { return choose(dt == 0, vfloat{}, dt * derivative); }

template <class Functions> constexpr MaskStage mask_of() {
  if constexpr (requires { Functions::own_mask; }) return Functions::own_mask;
  return nullptr;
}

template <class Functions, class T> void function_chunk_fp32(const BwdProblem& a, const BwdUnit& u, void* scratch) {
  static const constexpr BwdStorage storage{load_q_fp32<T>,
                                            load_rows_fp32<T, false>,
                                            load_rows_fp32<T, true>,
                                            store_rows<T>,
                                            nullptr,
                                            nullptr,
                                            sizeof(T),
                                            Functions::template own_gradients<ComputeFp32>,
                                            mask_of<Functions>()};
  Backward<ComputeFp32>(storage, a, u, *(BwdScratch*)scratch).run();
}

#if TILEKILN_PAIRS
template <class Functions> void function_chunk_pairs(const BwdProblem& a, const BwdUnit& u, void* scratch) {
  static const constexpr BwdStorage storage{load_q_pairs<bf16>,
                                            load_k_pairs<bf16>,
                                            load_v_pairs<bf16>,
                                            store_rows<bf16>,
                                            nullptr,
                                            nullptr,
                                            sizeof(bf16),
                                            Functions::template own_gradients<ComputeBf16>,
                                            mask_of<Functions>()};
  Backward<ComputeBf16>(storage, a, u, *(BwdScratch*)scratch).run();
}
#endif

template <class Functions, class T> constexpr auto function_chunk = function_chunk_fp32<Functions, T>;
#if TILEKILN_PAIRS
template <class Functions> constexpr auto function_chunk<Functions, bf16> =
    either_unit<function_chunk_pairs<Functions>, function_chunk_fp32<Functions, bf16>, const BwdProblem&,
                const BwdUnit&, void*>;
#endif

template <class Functions, class T> constexpr fmha::FunctionBwdEngine backward_engine = {
    dot_do_o<T>, function_chunk<Functions, T>, convert_dq<T>, sizeof(BwdScratch), kTileQ, kChunk};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
