// The qlanes engine of fmha_fwd for one target: compiled once with the target's flags and -DTILEKILN_TARGET=<its name>, every
// instance of that target is a row over it. The engine is the only symbol that leaves this unit.
#include "kernels/attention/cpu/qlanes/forward.h"
#include "kernels/attention/cpu/qlanes/stages.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// q, k, v of T converted to fp32 (fp32 itself: used where it lies); out and bias of Out.
template <class T, class Out> void fp32_tile(const FwdProblem& a, const FwdUnit& u, void* scratch) {
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
  forward<ComputeFp32>(storage, a, u, *(Scratch*)scratch);
}

#if TILEKILN_PAIRS
// bf16 pairs. K of bf16 is used where it lies; V is paired over keys per block. out and bias are bf16.
template <class T> void bf16_tile(const FwdProblem& a, const FwdUnit& u, void* scratch) {
  constexpr bool kConvert = sizeof(T) != sizeof(bf16);
  static const constexpr Storage storage{load_q_pairs<T>,  kConvert ? load_k_pairs<T> : nullptr,
                                         load_v_pairs<T>,  load_k_pairs<T>,
                                         load_v_pairs<T>,  store_out<bf16>,
                                         score_bias<bf16>, sizeof(T),
                                         sizeof(T),        sizeof(bf16),
                                         sizeof(bf16)};
  forward<ComputeBf16>(storage, a, u, *(Scratch*)scratch);
}
constexpr auto bf16_bf16_tile = bf16_tile<bf16>, fp8_bf16_tile = bf16_tile<fp8>;
#else
constexpr auto bf16_bf16_tile = fp32_tile<bf16, bf16>, fp8_bf16_tile = fp32_tile<fp8, bf16>;
#endif

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_qlanes)

// In the order of Dtype: fp32, fp16, bf16, fp8bf16, fp8fp32. An fp32 result of fp8 is computed in fp32: rounding P to bf16
// would be its largest error; under a bf16 result it does not show.
extern "C" const tilekiln::fmha::FwdEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::fp32_tile<float, float>, tilekiln::cpu::fp32_tile<tilekiln::cpu::fp16, tilekiln::cpu::fp16>,
     tilekiln::cpu::bf16_bf16_tile, tilekiln::cpu::fp8_bf16_tile, tilekiln::cpu::fp32_tile<tilekiln::cpu::fp8, float>},
    sizeof(tilekiln::cpu::Scratch),
    tilekiln::cpu::kTileQ,
    tilekiln::cpu::kTileK};
