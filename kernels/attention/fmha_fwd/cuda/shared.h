// Constants of a build of the forward, and the shared memory of its CTAs.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/fp8.h"

namespace tilekiln::cuda::fmha_fwd {

constexpr int kHdimQ = HDIM_Q, kHdimV = HDIM_V, kWarpgroups = WARPGROUPS, kKeys = KEYS, kStages = STAGES;
constexpr int kStep = kFp8 ? 32 : 16, kColumns = 4 * kStep;  // of one product, and of a panel: rows of 128 bytes
constexpr int kPanelsQ = (kHdimQ + kColumns - 1) / kColumns, kPanelsV = (kHdimV + kColumns - 1) / kColumns;
constexpr int kQueryRows = 64 * kWarpgroups, kThreads = 128 * (kWarpgroups + 1);
constexpr int kQStages = QUERY_STAGES, kTileSlots = 2 * kQStages;  // a loader is at most kQStages tiles ahead
constexpr uint32_t kKBytes = kPanelsQ * kKeys * 128, kVBytes = kPanelsV * kKeys * 128, kQBytes = kPanelsQ * 64 * 128;
constexpr int kDroppedRoom = kHdimQ > 192 ? 16 : kHdimQ > 128 ? 32 : 128;  // see DroppedHalf
using Order = Tiles<kQueryRows, kKeys>;

// A tile, as the warp that deals tiles out hands it to those that load keys and values.
struct Dealt {
  Tile tile;
  Keys keys;
  int low;  // of a cache: keys before it are seen by no row
};

struct Shared {
  uint8_t q[kQStages][kWarpgroups][kQBytes], k[kStages][kKBytes], v[kStages][kVBytes];
#ifdef TILEKILN_FP8
  uint8_t turned[kStages][kHdimV * kKeys];  // v as the products want it
  uint64_t turned_full[kStages], turned_empty[kStages];
  int no_more[kStages];  // in place of a tile of v
#endif
  uint64_t q_full[kQStages][kWarpgroups], q_empty[kQStages][kWarpgroups];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  Tile tile[kTileSlots][kWarpgroups];
  Dealt dealt[2];
  uint64_t dealt_full[2], dealt_empty[2], ask;
#ifndef TILEKILN_FP8
  alignas(16) uint8_t dropped[kWarpgroups][4][16 * kDroppedRoom];  // by warp
#endif
};
static_assert(sizeof(Shared) <= 232448, "a block of Hopper has 227 KB of shared memory");

}  // namespace tilekiln::cuda::fmha_fwd
