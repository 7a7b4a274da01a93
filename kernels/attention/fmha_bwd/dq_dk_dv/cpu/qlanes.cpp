// SPDX-License-Identifier: MIT
// The qlanes engine of the backward families for one target, all three stages: compiled once with the target's flags and
// -DTILEKILN_TARGET=<its name>, every instance of that target is a row over it. The engine is the only symbol that leaves this unit.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 warns inside its own AVX-512 headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "kernels/attention/cpu/qlanes_bwd/backward.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

template <class T> void fp32_chunk(const BwdProblem& a, const BwdUnit& u, void* scratch) {
  static const constexpr BwdStorage storage{load_q_fp32<T>, load_rows_fp32<T, false>, load_rows_fp32<T, true>,
                                            store_rows<T>,  store_dbias<T>,           score_bias<T>,
                                            sizeof(T)};
  Backward<ComputeFp32>(storage, a, u, *(BwdScratch*)scratch).run();
}

#if TILEKILN_PAIRS
void pairs_chunk(const BwdProblem& a, const BwdUnit& u, void* scratch) {
  static const constexpr BwdStorage storage{load_q_pairs<bf16>, load_k_pairs<bf16>, load_v_pairs<bf16>,
                                            store_rows<bf16>,   store_dbias<bf16>,  score_bias<bf16>,
                                            sizeof(bf16)};
  Backward<ComputeBf16>(storage, a, u, *(BwdScratch*)scratch).run();
}
constexpr auto bf16_chunk = either_unit<pairs_chunk, fp32_chunk<bf16>, const BwdProblem&, const BwdUnit&, void*>;
#else
constexpr auto bf16_chunk = fp32_chunk<bf16>;
#endif

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_bwd_dq_dk_dv_qlanes)

// Functions in the order of Dtype; fp8 has no backward.
extern "C" const tilekiln::fmha::BwdEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::dot_do_o<float>, tilekiln::cpu::dot_do_o<tilekiln::cpu::fp16>,
     tilekiln::cpu::dot_do_o<tilekiln::cpu::bf16>, nullptr, nullptr},
    {tilekiln::cpu::fp32_chunk<float>, tilekiln::cpu::fp32_chunk<tilekiln::cpu::fp16>, tilekiln::cpu::bf16_chunk,
     nullptr, nullptr},
    {tilekiln::cpu::convert_dq<float>, tilekiln::cpu::convert_dq<tilekiln::cpu::fp16>,
     tilekiln::cpu::convert_dq<tilekiln::cpu::bf16>, nullptr, nullptr},
    {tilekiln::cpu::sum_heads<float>, tilekiln::cpu::sum_heads<tilekiln::cpu::fp16>,
     tilekiln::cpu::sum_heads<tilekiln::cpu::bf16>, nullptr, nullptr},
    sizeof(tilekiln::cpu::BwdScratch),
    tilekiln::cpu::kTileQ,
    tilekiln::cpu::kChunk};
