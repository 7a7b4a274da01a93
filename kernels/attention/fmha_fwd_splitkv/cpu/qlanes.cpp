// SPDX-License-Identifier: MIT
// The qlanes engine of the KV-cache families for one target, compiled once with the target's flags and -DTILEKILN_TARGET=<its name>:
// the forward of fmha_fwd over keys in a cache. The engine is the only symbol that leaves this unit.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 warns inside its own AVX-512 headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "kernels/attention/cpu/element.h"
#include "kernels/attention/cpu/qlanes/cache_keys.h"
#include "kernels/attention/cpu/qlanes/forward.h"
#include "kernels/attention/cpu/qlanes/stages.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// q of Q, cache of T, both converted to fp32 (fp32 itself: used where it lies); bias of B, results of Out.
template <class Q, class T, class B, class Out> void fp32_tile(const KvProblem& a, const KvUnit& u, void* scratch) {
  constexpr bool kConvert = sizeof(T) != sizeof(float);
  using Element = typename Bits<sizeof(T)>::Type;
  static const constexpr CacheStorage storage{
      {load_q_fp32<Q>, kConvert ? load_rows_fp32<T, false> : nullptr, kConvert ? load_rows_fp32<T, true> : nullptr,
       load_rows_fp32<T, false>, load_rows_fp32<T, true>, store_out<Out>, score_bias<B>, sizeof(Q), sizeof(T),
       sizeof(Out), sizeof(B)},
      unpack_keys<Element>,
      unpack_values<Element>};
  forward<ComputeFp32, CacheKeys>(storage, a, u, *(CacheScratch*)scratch);
}

#if TILEKILN_PAIRS
// bf16 pairs. K of bf16 is used where it lies; V is paired over keys per block.
template <class Q, class T, class Out> void pairs_tile(const KvProblem& a, const KvUnit& u, void* scratch) {
  constexpr bool kConvert = sizeof(T) != sizeof(bf16);
  using Element = typename Bits<sizeof(T)>::Type;
  static const constexpr CacheStorage storage{
      {load_q_pairs<Q>, kConvert ? load_k_pairs<T> : nullptr, load_v_pairs<T>, load_k_pairs<T>, load_v_pairs<T>,
       store_out<Out>, score_bias<bf16>, sizeof(Q), sizeof(T), sizeof(Out), sizeof(bf16)},
      unpack_keys<Element>,
      unpack_values<Element>};
  forward<ComputeBf16, CacheKeys>(storage, a, u, *(CacheScratch*)scratch);
}
template <class Q, class T, class Out> constexpr auto bf16_tile =
    either_unit<pairs_tile<Q, T, Out>, fp32_tile<Q, T, bf16, Out>, const KvProblem&, const KvUnit&, void*>;
#else
template <class Q, class T, class Out> constexpr auto bf16_tile = fp32_tile<Q, T, bf16, Out>;
#endif

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_splitkv_qlanes)

// Functions in the order of KvDtype: fp32, fp16, bf16, fp8, fp8bf16, bf16_fp8, bf16_bf8. fp8 into fp32 or e4m3 is computed in fp32: rounding P to
// bf16 would be its largest error; under a bf16 result it does not show.
extern "C" const tilekiln::fmha::KvEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::fp32_tile<float, float, float, float>,
     tilekiln::cpu::fp32_tile<tilekiln::cpu::fp16, tilekiln::cpu::fp16, tilekiln::cpu::fp16, tilekiln::cpu::fp16>,
     tilekiln::cpu::bf16_tile<tilekiln::cpu::bf16, tilekiln::cpu::bf16, tilekiln::cpu::bf16>,
     tilekiln::cpu::fp32_tile<tilekiln::cpu::fp8, tilekiln::cpu::fp8, float, tilekiln::cpu::saturated_fp8>,
     tilekiln::cpu::bf16_tile<tilekiln::cpu::fp8, tilekiln::cpu::fp8, tilekiln::cpu::bf16>,
     tilekiln::cpu::bf16_tile<tilekiln::cpu::bf16, tilekiln::cpu::fp8, tilekiln::cpu::bf16>,
     tilekiln::cpu::bf16_tile<tilekiln::cpu::bf16, tilekiln::cpu::bf8, tilekiln::cpu::bf16>},
    {tilekiln::cpu::fp32_tile<float, float, float, float>,
     tilekiln::cpu::fp32_tile<tilekiln::cpu::fp16, tilekiln::cpu::fp16, tilekiln::cpu::fp16, float>,
     tilekiln::cpu::bf16_tile<tilekiln::cpu::bf16, tilekiln::cpu::bf16, float>,
     tilekiln::cpu::fp32_tile<tilekiln::cpu::fp8, tilekiln::cpu::fp8, float, float>,
     tilekiln::cpu::bf16_tile<tilekiln::cpu::fp8, tilekiln::cpu::fp8, float>,
     tilekiln::cpu::bf16_tile<tilekiln::cpu::bf16, tilekiln::cpu::fp8, float>,
     tilekiln::cpu::bf16_tile<tilekiln::cpu::bf16, tilekiln::cpu::bf8, float>},
    {},
    {},
    sizeof(tilekiln::cpu::CacheScratch),
    tilekiln::cpu::kTileQ,
    tilekiln::cpu::kTileK,
    0};
