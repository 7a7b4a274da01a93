// The panels engine of gemm for one target: compiled once with the target's flags and -DTILEKILN_TARGET=<its name>, every instance
// of that target is a row over it. The engine is the only symbol that leaves this unit.
#include "tilekiln/cpu/gemm/unit.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// Storage types over what multiplies them: only these tables know.
constexpr Stages kFp32{pack_lanes_fp32<float>,
                       pack_rows<float, Fp32Words>,
                       copy_rows_fp32<float>,
                       pack_lanes_fp32<float>,
                       sizeof(float),
                       true,
                       true,
                       true};
template <class T>
constexpr Stages kWidened{
    pack_lanes_fp32<T>, pack_rows<T, Fp32Words>, copy_rows_fp32<T>, pack_lanes_fp32<T>, sizeof(T), false, false, false};

void fp32_unit(const matrix::Problem& p, const matrix::Unit& u, void* scratch) {
  run_unit<ComputeFp32>(kFp32, finish_of<float>(p), p, u, *(GemmScratch*)scratch);
}
void fp16_unit(const matrix::Problem& p, const matrix::Unit& u, void* scratch) {
  run_unit<ComputeFp32>(kWidened<fp16>, finish_of<fp16>(p), p, u, *(GemmScratch*)scratch);
}
void bf16_unit(const matrix::Problem& p, const matrix::Unit& u, void* scratch) {
#if TILEKILN_PAIRS
  static constexpr Stages stages{
      pack_lanes_bf16, pack_rows<bf16, Bf16Words>, copy_rows_bf16, pack_lanes_bf16, sizeof(bf16), true, false, true};
  run_unit<ComputeBf16>(stages, finish_of<bf16>(p), p, u, *(GemmScratch*)scratch);
#else
  run_unit<ComputeFp32>(kWidened<bf16>, finish_of<bf16>(p), p, u, *(GemmScratch*)scratch);
#endif
}
void int8_unit(const matrix::Problem& p, const matrix::Unit& u, void* scratch) {
#if TILEKILN_QUADS
  static constexpr Stages stages{pack_lanes_int8<true>,
                                 pack_rows<int8, Int8Words>,
                                 copy_rows_int8,
                                 pack_lanes_int8<false>,
                                 sizeof(int8),
                                 true,
                                 false,
                                 true};
  run_unit<ComputeInt8>(stages, Finish{finish_words, true}, p, u, *(GemmScratch*)scratch);
#else
  static constexpr Stages stages{pack_lanes_int16<int8>,
                                 pack_rows<int8, Int16Words>,
                                 copy_rows_int16,
                                 pack_lanes_int16<int8>,
                                 sizeof(int8),
                                 false,
                                 false,
                                 true};
  run_unit<ComputeInt16>(stages, Finish{finish_words, true}, p, u, *(GemmScratch*)scratch);
#endif
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _gemm_panels)

// In the order of Dtype.
extern "C" const tilekiln::matrix::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::fp32_unit, tilekiln::cpu::fp16_unit, tilekiln::cpu::bf16_unit, tilekiln::cpu::int8_unit},
    sizeof(tilekiln::cpu::GemmScratch),
    tilekiln::cpu::kUnitColumns};
