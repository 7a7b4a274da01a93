// SPDX-License-Identifier: MIT
// A tile of attention with functions from Python: forward() of the attention engine, whose stages the functions are. The includer
// has Functions, with own_score, own_mask or both.
#pragma once

#include "kernels/attention/cpu/qlanes/forward.h"
#include "kernels/attention/function/lanes.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using fmha::FunctionProblem;

template <class Functions> struct FunctionStages : Storage, Functions {};

template <class Functions, class T> void function_fp32(const FunctionProblem& a, const FwdUnit& u, void* scratch) {
  constexpr bool kConvert = sizeof(T) != sizeof(float);
  static const constexpr FunctionStages<Functions> stages{
      {load_q_fp32<T>, kConvert ? load_rows_fp32<T, false> : nullptr, kConvert ? load_rows_fp32<T, true> : nullptr,
       load_rows_fp32<T, false>, load_rows_fp32<T, true>, store_out<T>, nullptr, sizeof(T), sizeof(T), sizeof(T),
       sizeof(T)}};
  forward<ComputeFp32>(stages, a, u, *(Scratch*)scratch);
}

#if TILEKILN_PAIRS
template <class Functions> void function_pairs(const FunctionProblem& a, const FwdUnit& u, void* scratch) {
  static const constexpr FunctionStages<Functions> stages{
      {load_q_pairs<bf16>, nullptr, load_v_pairs<bf16>, load_k_pairs<bf16>, load_v_pairs<bf16>, store_out<bf16>,
       nullptr, sizeof(bf16), sizeof(bf16), sizeof(bf16), sizeof(bf16)}};
  forward<ComputeBf16>(stages, a, u, *(Scratch*)scratch);
}
#endif

template <class Functions, class T> constexpr auto function_tile = function_fp32<Functions, T>;
#if TILEKILN_PAIRS
template <class Functions> constexpr auto function_tile<Functions, bf16> =
    either_unit<function_pairs<Functions>, function_fp32<Functions, bf16>, const FunctionProblem&, const FwdUnit&,
                void*>;
#endif

template <class Functions, class T> constexpr fmha::FunctionEngine forward_engine = {function_tile<Functions, T>,
                                                                                     sizeof(Scratch), kTileQ};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
