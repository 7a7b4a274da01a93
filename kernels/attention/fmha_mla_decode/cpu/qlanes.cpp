// SPDX-License-Identifier: MIT
// The engine of fmha_mla_decode for one target, compiled once with the target's flags and -DTILEKILN_TARGET=<its name>. It is the only
// symbol that leaves this unit.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 warns inside its own AVX-512 headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "kernels/attention/cpu/dlanes/combine.h"
#include "kernels/attention/fmha_mla_decode/cpu/attend.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

template <class Compute, const LatentStorage& storage>
void rows(const mla::Problem& a, const mla::Unit& u, void* scratch) {
  LatentTile<Compute>(storage, a, u, *(LatentScratch*)scratch).run();
}

template <class T>
constexpr LatentStorage as_fp32 = {load_q_fp32<T>, load_rows_fp32<T, false>,  store_out<T>, store_row<T>, sizeof(T),
                                   sizeof(T),      sizeof(T) == sizeof(float)};
constexpr LatentStorage fp8_as_fp32 = {
    load_q_fp32<bf16>, load_fp8_rows_fp32, store_out<bf16>, store_row<bf16>, sizeof(bf16), 1, false};

#if TILEKILN_PAIRS
constexpr LatentStorage bf16_pairs = {
    load_q_pairs<bf16>, load_k_pairs<bf16>, store_out<bf16>, store_row<bf16>, sizeof(bf16), sizeof(bf16), true};
constexpr LatentStorage fp8_pairs = {
    load_q_pairs<bf16>, load_fp8_rows_pairs, store_out<bf16>, store_row<bf16>, sizeof(bf16), 1, false};
template <const LatentStorage& pairs, const LatentStorage& fp32>
constexpr auto bf16_rows =
    either_unit<rows<ComputeBf16, pairs>, rows<ComputeFp32, fp32>, const mla::Problem&, const mla::Unit&, void*>;
#endif

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_mla_decode_qlanes)

// Functions in the order of Storage: fp32, fp16, bf16, bf16_fp8.
extern "C" const tilekiln::mla::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<tilekiln::cpu::ComputeFp32, tilekiln::cpu::as_fp32<float>>,
     tilekiln::cpu::rows<tilekiln::cpu::ComputeFp32, tilekiln::cpu::as_fp32<tilekiln::cpu::fp16>>,
#if TILEKILN_PAIRS
     tilekiln::cpu::bf16_rows<tilekiln::cpu::bf16_pairs, tilekiln::cpu::as_fp32<tilekiln::cpu::bf16>>,
     tilekiln::cpu::bf16_rows<tilekiln::cpu::fp8_pairs, tilekiln::cpu::fp8_as_fp32>},
#else
     tilekiln::cpu::rows<tilekiln::cpu::ComputeFp32, tilekiln::cpu::as_fp32<tilekiln::cpu::bf16>>,
     tilekiln::cpu::rows<tilekiln::cpu::ComputeFp32, tilekiln::cpu::fp8_as_fp32>},
#endif
    {tilekiln::cpu::combine<float>, tilekiln::cpu::combine<tilekiln::cpu::fp16>,
     tilekiln::cpu::combine<tilekiln::cpu::bf16>, tilekiln::cpu::combine<tilekiln::cpu::bf16>},
    sizeof(tilekiln::cpu::LatentScratch),
    tilekiln::cpu::kTileQ,
    tilekiln::cpu::kTileK};
