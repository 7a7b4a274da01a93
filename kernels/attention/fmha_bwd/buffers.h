// SPDX-License-Identifier: MIT
// The memory of a backward call on the host: its workspace, delta, and what its stages hand each other.
#pragma once
#include <vector>

#include "kernels/attention/fmha_bwd/sequences.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::fmha {

class BwdBuffers {
 public:
  // All of it, before a stage runs; TILEKILN_OUT_OF_MEMORY and nothing written where there is not enough. Sets delta and lse of the
  // problem, and nsplits, acc and marks of the sequences.
  [[nodiscard]] tilekiln_status get(BwdCall& call, BwdUnits& units);

  CallMemory shares;          // of d_sink, one a unit of rows
  CallMemory dk_acc, dv_acc;  // fp32, of each query head apart, where units.own_heads
  char* workspace = nullptr;
  char* schedule = nullptr;  // the host segment
  float* dq_acc = nullptr;
  u64 dq_acc_bytes = 0;
  // A byte a tile of dq_acc, by BwdSequence::marks; null where there are none.
  unsigned char* locks = nullptr;  // held while a unit adds to the tile
  unsigned char* begun = nullptr;  // whether the tile was stored before it is added to

 private:
  [[nodiscard]] tilekiln_status get_workspace(BwdCall& call, BwdUnits& units);
  [[nodiscard]] tilekiln_status check_prepared(const BwdCall& call, const BwdUnits& units) const;
  [[nodiscard]] tilekiln_status get_delta(BwdCall& call, BwdUnits& units);

  CallMemory own_, delta_, lse_, locks_, begun_;
  std::vector<u64> packed_;  // the host segment, where that of the workspace is not the host's to use
};

}  // namespace tilekiln::fmha
