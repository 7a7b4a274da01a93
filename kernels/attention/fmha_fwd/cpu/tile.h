// SPDX-License-Identifier: MIT
// A tile of fmha_fwd by dtype: how its arrays are stored, and forward() over that.
#pragma once

#include "kernels/attention/cpu/qlanes/forward.h"
#include "kernels/attention/cpu/qlanes/stages.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// q, k, v of T converted to fp32 (fp32 itself: used where it lies); out and bias of Out. Problem: FwdProblem, or what extends it by
// nothing but constants.
template <class T, class Out, class Problem = FwdProblem> void fp32_tile(const FwdProblem& a, const FwdUnit& u,
                                                                         void* scratch) {
  constexpr bool kConvert = sizeof(T) != sizeof(float);
  static const constexpr Storage storage{load_q_fp32<T>,
                                         kConvert ? load_rows_fp32<T, false> : nullptr,
                                         kConvert ? load_rows_fp32<T, true> : nullptr,
                                         load_rows_fp32<T, false>,
                                         load_rows_fp32<T, true>,
                                         store_out<Out>,
                                         score_bias<Out>,
                                         sizeof(T),
                                         sizeof(T),
                                         sizeof(Out),
                                         sizeof(Out)};
  forward<ComputeFp32>(storage, static_cast<const Problem&>(a), u, *(Scratch*)scratch);
}

#if TILEKILN_PAIRS
// bf16 pairs. K of bf16 is used where it lies; V is paired over keys per block. out and bias are bf16.
template <class T, class Problem = FwdProblem> void bf16_tile(const FwdProblem& a, const FwdUnit& u, void* scratch) {
  constexpr bool kConvert = sizeof(T) != sizeof(bf16);
  static const constexpr Storage storage{load_q_pairs<T>,  kConvert ? load_k_pairs<T> : nullptr,
                                         load_v_pairs<T>,  load_k_pairs<T>,
                                         load_v_pairs<T>,  store_out<bf16>,
                                         score_bias<bf16>, sizeof(T),
                                         sizeof(T),        sizeof(bf16),
                                         sizeof(bf16)};
  forward<ComputeBf16>(storage, static_cast<const Problem&>(a), u, *(Scratch*)scratch);
}
template <class Problem = FwdProblem> constexpr auto bf16_bf16_tile =
    either_unit<bf16_tile<bf16, Problem>, fp32_tile<bf16, bf16, Problem>, const FwdProblem&, const FwdUnit&, void*>;
template <class Problem = FwdProblem> constexpr auto fp8_bf16_tile =
    either_unit<bf16_tile<fp8, Problem>, fp32_tile<fp8, bf16, Problem>, const FwdProblem&, const FwdUnit&, void*>;
#else
template <class Problem = FwdProblem> constexpr auto bf16_bf16_tile = fp32_tile<bf16, bf16, Problem>;
template <class Problem = FwdProblem> constexpr auto fp8_bf16_tile = fp32_tile<fp8, bf16, Problem>;
#endif

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
