// SPDX-License-Identifier: MIT
// The dlanes engine of the KV-cache families for one target, compiled once with the target's flags and -DTILEKILN_TARGET=<its name>:
// decode, the combine of its splits, and append. The engine is the only symbol that leaves this unit.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 warns inside its own AVX-512 headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "kernels/attention/cpu/dlanes/append.h"
#include "kernels/attention/cpu/dlanes/combine.h"
#include "kernels/attention/cpu/dlanes/decode.h"
#include "kernels/attention/cpu/element.h"
#include "kernels/backends/cpu/saturate.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

template <class Row, class T, bool Direct> constexpr RowProducts products() {
  constexpr int kKDims = Direct ? Row::kDims : 1, kVDims = Direct ? 2 * kLanes : 1;
#if TILEKILN_PAIRS
  if constexpr (kValuePairs<T>) {
    return {scores<Row>,
            values<ValueSums, T, 1>,
            values<ValuePairSums, T, 4>,
            ValueRow<T>::kOrder,
            ValueOrder::interleaved,
            true,
            kKDims,
            kVDims};
  }
#endif
  return {scores<Row>,
          values<ValueSums, T, 4>,
          values<ValueSums, T, 4>,
          ValueRow<T>::kOrder,
          ValueRow<T>::kOrder,
          false,
          kKDims,
          kVDims};
}
// Row: how K is read, T: the cache's element. V's padded copy is fp32.
template <class Row, class T> constexpr RowProducts direct_products = products<Row, T, true>();
template <class PadRow> constexpr RowProducts padded_products = products<PadRow, float, false>();

template <class Q, class T, class B, class Out> void fp32_rows(const KvProblem& a, const KvUnit& u, void* scratch) {
  using Element = typename Bits<sizeof(T)>::Type;
  static const constexpr RowStorage storage{load_q_row_fp32<Q>,
                                            direct_products<Fp32Row<T>, T>,
                                            padded_products<Fp32Row<float>>,
                                            load_rows_fp32<T, false>,
                                            load_rows_fp32<T, true>,
                                            unpack_keys<Element>,
                                            unpack_values<Element>,
                                            score_row<RowBias<B>>,
                                            store_row<Out>,
                                            sizeof(Q),
                                            sizeof(T),
                                            sizeof(Out),
                                            sizeof(B),
                                            kByteTable<T>};
  decode(storage, a, u, *(RowScratch*)scratch);
}

#if TILEKILN_PAIRS
// Pairs whatever their arithmetic costs: memory decides, and where they run at half of fp32's rate they take .9 of its time (widens_bf16).
template <class Q, class T, class B, class Out> void bf16_rows(const KvProblem& a, const KvUnit& u, void* scratch) {
  using Element = typename Bits<sizeof(T)>::Type;
  using Read = typename ReadAs<T>::Type;
  static const constexpr RowStorage storage{load_q_row_pairs<Q>,
                                            direct_products<PairRow<Read>, Read>,
                                            padded_products<PairRow<bf16>>,
                                            load_k_pairs<T>,
                                            load_rows_fp32<T, true>,
                                            unpack_keys<Element>,
                                            unpack_values<Element>,
                                            score_row<RowBias<B>>,
                                            store_row<Out>,
                                            sizeof(Q),
                                            sizeof(T),
                                            sizeof(Out),
                                            sizeof(B),
                                            kByteTable<T>};
  decode(storage, a, u, *(RowScratch*)scratch);
}
#else
template <class Q, class T, class B, class Out> constexpr auto bf16_rows = fp32_rows<Q, T, B, Out>;
#endif

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_splitkv_dlanes)

// Functions in the order of KvDtype: fp32, fp16, bf16, fp8, fp8bf16, bf16_fp8, bf16_bf8. Products of bytes in pairs of bf16 are exact. P is fp32 for
// one row of a key head, bf16 for several: under a bf16 or e4m3 result that does not show.
extern "C" const tilekiln::fmha::KvEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::fp32_rows<float, float, float, float>,
     tilekiln::cpu::fp32_rows<tilekiln::cpu::fp16, tilekiln::cpu::fp16, tilekiln::cpu::fp16, tilekiln::cpu::fp16>,
     tilekiln::cpu::bf16_rows<tilekiln::cpu::bf16, tilekiln::cpu::bf16, tilekiln::cpu::bf16, tilekiln::cpu::bf16>,
     tilekiln::cpu::bf16_rows<tilekiln::cpu::fp8, tilekiln::cpu::fp8, float, tilekiln::cpu::saturated_fp8>,
     tilekiln::cpu::bf16_rows<tilekiln::cpu::fp8, tilekiln::cpu::fp8, tilekiln::cpu::bf16, tilekiln::cpu::bf16>,
     tilekiln::cpu::bf16_rows<tilekiln::cpu::bf16, tilekiln::cpu::fp8, tilekiln::cpu::bf16, tilekiln::cpu::bf16>,
     tilekiln::cpu::bf16_rows<tilekiln::cpu::bf16, tilekiln::cpu::bf8, tilekiln::cpu::bf16, tilekiln::cpu::bf16>},
    {tilekiln::cpu::fp32_rows<float, float, float, float>,
     tilekiln::cpu::fp32_rows<tilekiln::cpu::fp16, tilekiln::cpu::fp16, tilekiln::cpu::fp16, float>,
     tilekiln::cpu::bf16_rows<tilekiln::cpu::bf16, tilekiln::cpu::bf16, tilekiln::cpu::bf16, float>,
     tilekiln::cpu::bf16_rows<tilekiln::cpu::fp8, tilekiln::cpu::fp8, float, float>,
     tilekiln::cpu::bf16_rows<tilekiln::cpu::fp8, tilekiln::cpu::fp8, tilekiln::cpu::bf16, float>,
     tilekiln::cpu::bf16_rows<tilekiln::cpu::bf16, tilekiln::cpu::fp8, tilekiln::cpu::bf16, float>,
     tilekiln::cpu::bf16_rows<tilekiln::cpu::bf16, tilekiln::cpu::bf8, tilekiln::cpu::bf16, float>},
    {tilekiln::cpu::combine<float>, tilekiln::cpu::combine<tilekiln::cpu::fp16>,
     tilekiln::cpu::combine<tilekiln::cpu::bf16>, tilekiln::cpu::combine<tilekiln::cpu::saturated_fp8>,
     tilekiln::cpu::combine<tilekiln::cpu::bf16>, tilekiln::cpu::combine<tilekiln::cpu::bf16>,
     tilekiln::cpu::combine<tilekiln::cpu::bf16>},
    {tilekiln::cpu::append<float>, tilekiln::cpu::append<tilekiln::cpu::fp16>,
     tilekiln::cpu::append<tilekiln::cpu::bf16>, tilekiln::cpu::append<tilekiln::cpu::fp8>},
    sizeof(tilekiln::cpu::RowScratch),
    tilekiln::cpu::kMaxRows,
    tilekiln::cpu::kTileK,
    tilekiln::cpu::kMaxStreamRows};
