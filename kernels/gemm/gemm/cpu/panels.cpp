// SPDX-License-Identifier: MIT
// The panels engine of gemm for one target: compiled once with the target's flags and -DTILEKILN_TARGET=<its name>, every instance
// of that target is a row over it. The engine is the only symbol that leaves this unit and those that
// it shares (kernels/gemm/cpu/shared.h).
#include <type_traits>

#include "kernels/gemm/cpu/turned.h"
#if TILEKILN_DOTS
#include "kernels/gemm/cpu/few_rows.h"
#endif

// fp16 is widened by one instruction.
#if defined(__AVX512F__) || defined(__F16C__) || defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define TILEKILN_STORED_FP16 1
#else
#define TILEKILN_STORED_FP16 0
#endif

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// Storage types over what multiplies them: only these tables know.
template <class T> constexpr auto kStored = (void (*)(const Operands&, int)) nullptr;
#if TILEKILN_STORED_FP16
template <> constexpr auto kStored<fp16> = (void (*)(const Operands&, int))stored_product<ComputeFp32, fp16>;
#endif
#if TILEKILN_SQUARES
// Packed panels of words times few rows as they lie; for more they become squares.
template <class Compute> constexpr auto kStoredWords = (void (*)(const Operands&, int))stored_product<Compute, float>;
#endif
template <class T, bool kInPlace>
constexpr Stages kFp32Words{
    pack_lanes_fp32<T>, pack_rows<T, Fp32Words>,
    copy_rows_fp32<T>,  pack_lanes_fp32<T>,
    sizeof(T),          kInPlace,
    kInPlace,           kInPlace ? nullptr : std::is_same_v<T, core::bf16> ? unpack_pairs<T> : pack_lanes_fp32<T>,
    kStored<T>,         kInPlace ? fresh_product<ComputeFp32, MakeFp32> : nullptr};
template <class T> void fp32_unit(const matrix::Problem& p, const matrix::Unit& u, void* scratch) {
  if constexpr (sizeof(T) == sizeof(float) && kTurnedColumns > 0) {
    if (is_turned(p)) return run_turned<ComputeFp32>(kFp32Words<T, true>, p, u, *(GemmScratch*)scratch);
  }
#if TILEKILN_DOTS
  if constexpr (std::is_same_v<T, float> || sizeof(T) == 2) {
    if (is_few<T>(p, u)) return run_few<T>(p, u, *(GemmScratch*)scratch);
  }
  // fp8 and bf8 are widened by other engines' words.
  constexpr bool kDots =
      sizeof(T) == sizeof(float) || std::is_same_v<T, fp16> || (sizeof(T) == 2 && !TILEKILN_WORD_DOTS);
  if (kDots && is_dots(p)) return dots_unit(p, u, *(GemmScratch*)scratch);
#endif
  run_unit<ComputeFp32>(kFp32Words<T, sizeof(T) == sizeof(float)>, p, u, *(GemmScratch*)scratch);
}
template <class T> void bf16_unit(const matrix::Problem& p, const matrix::Unit& u, void* scratch) {
#if defined(__AVX512BF16__)
  // Rows that are words of pairs already, of bytes that were widened, stay pairs, and few rows, which memory decides.
  const bool few = TILEKILN_DOTS && is_dots(p);
  if (sizeof(T) == sizeof(bf16) && !few && tilekiln::widens_bf16()) return fp32_unit<T>(p, u, scratch);
#endif
#if TILEKILN_SQUARES
  static constexpr Stages stages{pack_lane_squares<T, 2, pack_lanes_bf16<T>>,
                                 pack_row_squares<T, 2, pack_rows<T, Bf16Words>>,
                                 copy_rows_bf16<T>,
                                 pack_lane_squares<T, 2, pack_lanes_bf16<T>>,
                                 sizeof(T),
                                 sizeof(T) == sizeof(bf16),
                                 false,
                                 pack_word_squares<2>,
                                 kStoredWords<ComputeBf16>,
                                 nullptr,
                                 copy_row_squares<T, 2, copy_rows_bf16<T>>,
                                 copy_row_squares<bf16, 2, copy_rows_bf16<bf16>>};
  run_unit<ComputeBf16>(stages, p, u, *(GemmScratch*)scratch);
#elif TILEKILN_PAIRS
  static constexpr Stages stages{pack_lanes_bf16<T>,
                                 pack_rows<T, Bf16Words>,
                                 copy_rows_bf16<T>,
                                 pack_lanes_bf16<T>,
                                 sizeof(T),
                                 sizeof(T) == sizeof(bf16),
                                 false,
                                 nullptr,
                                 nullptr,
                                 std::is_same_v<T, bf16> ? fresh_product<ComputeBf16, MakeBf16> : nullptr};
  if constexpr (sizeof(T) == sizeof(bf16)) {
    if (is_turned(p)) return run_turned<ComputeBf16>(stages, p, u, *(GemmScratch*)scratch);
  }
#if TILEKILN_DOTS
  if (sizeof(T) == sizeof(bf16) && is_dots(p)) return dots_unit(p, u, *(GemmScratch*)scratch);
#endif
  run_unit<ComputeBf16>(stages, p, u, *(GemmScratch*)scratch);
#else
  fp32_unit<T>(p, u, scratch);
#endif
}
void int8_unit(const matrix::Problem& p, const matrix::Unit& u, void* scratch) {
#if TILEKILN_SQUARES
  static constexpr Stages stages{pack_lane_squares<int8, 4, pack_lanes_int8<true>>,
                                 pack_row_squares<int8, 4, pack_rows<int8, Int8Words>>,
                                 copy_rows_int8,
                                 pack_lane_squares<int8, 4, pack_lanes_int8<false>>,
                                 sizeof(int8),
                                 true,
                                 false,
                                 pack_word_squares<4>,
                                 kStoredWords<ComputeInt8>,
                                 nullptr,
                                 copy_row_squares<int8, 4, copy_rows_int8>,
                                 copy_row_squares<int8, 4, copy_rows_int8>};
  run_unit<ComputeInt8>(stages, p, u, *(GemmScratch*)scratch);
#elif TILEKILN_QUADS
  static constexpr Stages stages{pack_lanes_int8<true>,
                                 pack_rows<int8, Int8Words>,
                                 copy_rows_int8,
                                 pack_lanes_int8<false>,
                                 sizeof(int8),
                                 true,
                                 false,
                                 nullptr,
                                 nullptr,
                                 fresh_product<ComputeInt8, MakeInt8>};
#if TILEKILN_WORD_DOTS
  if (is_dots(p)) return dots_unit(p, u, *(GemmScratch*)scratch);
#endif
  run_unit<ComputeInt8>(stages, p, u, *(GemmScratch*)scratch);
#else
  static constexpr Stages stages{pack_lanes_int16<int8>,
                                 pack_rows<int8, Int16Words>,
                                 copy_rows_int16,
                                 pack_lanes_int16<int8>,
                                 sizeof(int8),
                                 false,
                                 false,
                                 nullptr};
  run_unit<ComputeInt16>(stages, p, u, *(GemmScratch*)scratch);
#endif
}

// Functions that turn rows of a into words, by storage type.
constexpr matrix::Widen kAsItLies = {nullptr, 0};
template <class T> constexpr matrix::Widen kToFp32 = {copy_rows_fp32<T>, 1};
#if TILEKILN_PAIRS
template <class T> constexpr matrix::Widen kToPairs = {copy_rows_bf16<T>, 2};
constexpr matrix::Widen kOfBf16 = kAsItLies;
#else
template <class T> constexpr matrix::Widen kToPairs = kToFp32<T>;
constexpr matrix::Widen kOfBf16 = kToFp32<bf16>;
#endif
#if TILEKILN_QUADS
constexpr matrix::Widen kOfInt8 = kAsItLies;
#else
constexpr matrix::Widen kOfInt8 = {copy_rows_int16, 2};
#endif

// A quantised b, by groups of k; int8 with one factor a column is a product of int8 with scales.
void quantised_unit(const matrix::Grouped& g, const matrix::Unit& u, void* scratch) {
#if TILEKILN_QUADS
  const bool whole = g.group >= g.product.k && g.product.k > 0 && !g.a_scale;
  if (whole && g.a_dtype == matrix::Dtype::int8 && g.weights == matrix::Weights::int8) {
    matrix::Problem p = g.product;
    p.dtype = matrix::Dtype::int8;
    p.b_panels = ComputeInt8::kWord;
    p.column_scale = g.b_scale;
    return int8_unit(p, u, scratch);
  }
#endif
  groups_unit(g, u, scratch);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _gemm_panels)

// Functions in the order of Dtype.
extern "C" const tilekiln::matrix::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::fp32_unit<float>, tilekiln::cpu::fp32_unit<tilekiln::cpu::fp16>,
     tilekiln::cpu::bf16_unit<tilekiln::cpu::bf16>, tilekiln::cpu::int8_unit,
     tilekiln::cpu::bf16_unit<tilekiln::cpu::fp8>, tilekiln::cpu::bf16_unit<tilekiln::cpu::bf8>},
    {tilekiln::cpu::kAsItLies, tilekiln::cpu::kToFp32<tilekiln::cpu::fp16>, tilekiln::cpu::kOfBf16,
     tilekiln::cpu::kOfInt8, tilekiln::cpu::kToPairs<tilekiln::cpu::fp8>, tilekiln::cpu::kToPairs<tilekiln::cpu::bf8>},
    tilekiln::cpu::add_unit,
    tilekiln::cpu::quantised_unit,
    tilekiln::cpu::quantise_row,
    tilekiln::cpu::quantise_out,
    tilekiln::cpu::combine,
    sizeof(tilekiln::cpu::GemmScratch),
    tilekiln::cpu::kUnitColumns,
    tilekiln::cpu::is_turned,
    tilekiln::cpu::kTurnedColumns};
