// SPDX-License-Identifier: MIT
// The qtiles engine of the backward families for one target: qlanes of bf16 with its products by tiles. Compiled once with the target's
// flags and -DTILEKILN_TARGET=<its name>; what it has no function for, its target does not list.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 warns inside its own AVX-512 headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "kernels/attention/cpu/qtiles_bwd/block.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

void tiled_chunk(const BwdProblem& a, const BwdUnit& u, void* scratch) {
  static const constexpr BwdStorage storage{load_q_pairs<bf16>, load_k_pairs<bf16>, load_v_pairs<bf16>,
                                            store_rows<bf16>,   store_dbias<bf16>,  score_bias<bf16>,
                                            sizeof(bf16)};
  tiles::configure();
  Backward<ComputeTiles>(storage, a, u, *(TileBwdScratch*)scratch).run();
  tiles::release();
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_bwd_dq_dk_dv_qtiles)

// Functions in the order of Dtype.
extern "C" const tilekiln::fmha::BwdEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {nullptr, nullptr, tilekiln::cpu::dot_do_o<tilekiln::cpu::bf16>},
    {nullptr, nullptr, tilekiln::cpu::tiled_chunk},
    {nullptr, nullptr, tilekiln::cpu::convert_dq<tilekiln::cpu::bf16>},
    {nullptr, nullptr, tilekiln::cpu::sum_heads<tilekiln::cpu::bf16>},
    sizeof(tilekiln::cpu::TileBwdScratch),
    tilekiln::cpu::kTileQ,
    tilekiln::cpu::kChunk};
