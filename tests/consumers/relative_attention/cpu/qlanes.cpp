// SPDX-License-Identifier: MIT
// The score function, in the attention engine of the tree: everything but these scores is fmha_fwd's own.
#include "kernels/attention/cpu/qlanes/forward.h"

#include "../engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// t = c s + distance_bias[row - key]. Neighbouring lanes are neighbouring distances, so a block needs the 127 of its diagonals.
void score_distance(float* s, int j0, int j1, int begin, int end, vf* maximum, const Score& score) {
  const auto& a = *(const relative::Problem*)score.own;
  const float* bias = a.distance_bias + score.head * a.bias_of_head;
  float diagonal[kTileQ + kTileK];
  for (int i = 0; i < kTileQ + kTileK; ++i) {
    const i64 distance = score.distance + i - (kTileK - 1);
    diagonal[i] = bias[distance < 0 ? 0 : distance < a.distances ? distance : a.distances - 1];
  }
  const vf c = broadcast(score.c);
  for (int j = j0; j < j1; ++j) {
    vf m = maximum[j];
    for (int key = begin; key < end; ++key) {
      float* p = s + key * kTileQ + j * kLanes;
      const vf t = fma(load(p), c, widen(diagonal + j * kLanes + (kTileK - 1) - key));
      store(p, t);
      m = max(m, t);
    }
    maximum[j] = m;
  }
}

struct OwnScore : Storage { static constexpr ScoreStage own_score = score_distance; };

template <class T> void fp32_tile(const relative::Problem& a, const FwdUnit& u, void* scratch) {
  constexpr bool kConvert = sizeof(T) != sizeof(float);
  static const constexpr OwnScore storage{{load_q_fp32<T>, kConvert ? load_rows_fp32<T, false> : nullptr,
                                           kConvert ? load_rows_fp32<T, true> : nullptr, load_rows_fp32<T, false>,
                                           load_rows_fp32<T, true>, store_out<T>, nullptr, sizeof(T), sizeof(T),
                                           sizeof(T), sizeof(T)}};
  forward<ComputeFp32>(storage, a, u, *(Scratch*)scratch);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _relative_attention_qlanes)

// Functions by dtype: fp32, bf16.
extern "C" const tilekiln::relative::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::fp32_tile<float>, tilekiln::cpu::fp32_tile<tilekiln::cpu::bf16>},
    sizeof(tilekiln::cpu::Scratch),
    tilekiln::cpu::kTileQ};
