// The shape of a build of the forward, and what a CTA of it has in shared memory.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/tile.h"

namespace tilekiln::cuda::fmha_fwd {

constexpr int kHdimQ = HDIM_Q, kHdimV = HDIM_V, kWarpgroups = WARPGROUPS, kKeys = KEYS, kStages = STAGES;
constexpr int kPanelsQ = (kHdimQ + 63) / 64, kPanelsV = (kHdimV + 63) / 64;  // panels of 64 columns, rows of 128 bytes
constexpr int kQueryRows = 64 * kWarpgroups, kThreads = 128 * (kWarpgroups + 1);
constexpr int kQStages = QUERY_STAGES, kTileSlots = 2 * kQStages;  // a loader is at most kQStages tiles ahead
constexpr uint32_t kKBytes = kPanelsQ * kKeys * 128, kVBytes = kPanelsV * kKeys * 128, kQBytes = kPanelsQ * 64 * 128;
// Where O is the larger part of the registers it is rescaled between issuing the two products, else after the second.
constexpr bool kRescaleEarly = kHdimV > 128;
using Order = Tiles<kQueryRows, kKeys>;

// A tile for the loader of a cache, whose warps read it from here.
struct Work {
  Tile tile;
  Keys keys;  // of them those that a row of the tile sees, up to the last
  int low;    // no row sees a key before it but the sink columns
};

struct Shared {
  uint8_t q[kQStages][kWarpgroups][kQBytes], k[kStages][kKBytes], v[kStages][kVBytes];
  uint64_t q_full[kQStages][kWarpgroups], q_empty[kQStages][kWarpgroups];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  uint64_t work_full[2], work_empty[2], ask;  // of a cache's loader
  Tile tile[kTileSlots][kWarpgroups];
  Work work[2];
  uint32_t dropped[kWarpgroups][2][2][2][32];  // by pair of warps, step, warp and lane
};
static_assert(sizeof(Shared) <= 232448, "a block of Hopper has 227 KB of shared memory");

}  // namespace tilekiln::cuda::fmha_fwd
