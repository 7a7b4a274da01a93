// SPDX-License-Identifier: MIT
// The qtiles engine of fmha_fwd for one target: qlanes with its products by tiles. Compiled once with the target's flags and
// -DTILEKILN_TARGET=<its name>; what it has no function for, its target does not list.
#include "kernels/attention/cpu/qtiles/block.h"
#include "kernels/attention/cpu/qtiles/plain.h"
#include "kernels/attention/fmha_fwd/cpu/tile.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// Tiles are held for one unit, in which no thread sleeps.
template <class T> void tiled(const FwdProblem& a, const FwdUnit& u, void* scratch) {
  static const constexpr Storage storage{load_q_pairs<T>, load_k_tiles<T>, load_v_tiles<T>,  load_k_tiles<T>,
                                         load_v_tiles<T>, store_out<bf16>, score_bias<bf16>, sizeof(T),
                                         sizeof(T),       sizeof(bf16),    sizeof(bf16)};
  tiles::configure();
  TileScratch& w = *(TileScratch*)scratch;
  const int head_k = u.head / (a.nhead_q / a.nhead_k);
  const DenseRows rows(a, u, head_k, sizeof(T));
  if (!plain_forward<T, T, bf16>(a, u, descales_of(a, u, head_k), rows, 0, u.seqlen_k, true, w))
    forward<ComputeTiles>(storage, a, u, w);
  tiles::release();
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_qtiles)

// Functions in the order of Dtype.
extern "C" const tilekiln::fmha::FwdEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {nullptr, nullptr, tilekiln::cpu::tiled<tilekiln::cpu::bf16>, tilekiln::cpu::tiled<tilekiln::cpu::fp8>},
    sizeof(tilekiln::cpu::TileScratch),
    tilekiln::cpu::kTileQ,
    tilekiln::cpu::kTileK};
