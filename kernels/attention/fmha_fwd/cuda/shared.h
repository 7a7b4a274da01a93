// SPDX-License-Identifier: MIT
// Constants of a build of the forward, its roles, and the shared memory of its CTAs.
#pragma once

#include <type_traits>

#include "kernels/attention/fmha_fwd/cuda/hopper_functions.h"
#include "kernels/backends/cuda/tile/pipeline.h"
#include "kernels/backends/cuda/tile/roles.h"
#include "kernels/backends/cuda/tile/shared_tile.h"

namespace tilekiln::cuda::fmha_fwd {

constexpr int kHdimQ = HDIM_Q, kHdimV = HDIM_V, kKeys = KEYS, kStages = STAGES, kQStages = QUERY_STAGES;
using Warps = Roles<WARPGROUPS, LOADER_REGISTERS, REGISTERS>;
constexpr int kWarpgroups = Warps::kConsumers, kQueryRows = 64 * kWarpgroups;
constexpr int kTileSlots = 4;  // whoever deals tiles out is at most kQStages of them ahead
constexpr int kTurners = 3;    // warps that turn values of 8 bits over
constexpr int kDroppedRoom = kHdimQ > 192 ? 16 : kHdimQ > 128 ? 32 : 128;  // see DroppedHalf
// Biases come by pieces where there is room for a warp's rows, in place of random bytes.
constexpr bool kHasPieces = !kFp8 && kKeys == BiasPieces::kKeys && kHdimQ <= 128;
constexpr int kExtraRoom = kHasPieces ? BiasPieces::kBytes : 16 * kDroppedRoom;  // bytes of a warp
using Order = Tiles<kQueryRows, kKeys>;

using QueryTiles = PipelineApart<SharedTile<BuildElement, 64, kHdimQ, Major::K>, kQStages>;  // of a warpgroup
using KeyTiles = PipelineApart<SharedTile<BuildElement, kKeys, kHdimQ, Major::K>, kStages>;
using ValueTiles = PipelineApart<SharedTile<BuildElement, kHdimV, kKeys, Major::MN>, kStages>;
using TurnedTiles = PipelineApart<SharedTile<e4m3, kHdimV, 128, Major::K>, kStages>;  // values, see fp8.h
template <class Pipe> using StageOf = typename Pipe::Stage;
template <class Pipe> using Loader = Producer<Pipe, CountedState<Pipe::kStages>>;
template <class Pipe> using Reader = Consumer<Pipe, CountedState<Pipe::kStages>>;  // in the loaders' warpgroup
// Consumer of keys and values. Where it counts its steps alibi's loops of d64 and d128 are 1.5 to 2 % quicker than by
// PipelineState; those of d256 and of e4m3 are .5 to 3 % slower (H200, 4k), and fp16's soft cap of d64 has no register
// for it.
constexpr bool kCountsSteps = std::is_same_v<BuildElement, bf16> && kHdimQ <= 192;
template <class Pipe> using KeyConsumer = std::conditional_t<kCountsSteps, Reader<Pipe>, Consumer<Pipe>>;

// A tile, as the warp that deals tiles out hands it to those that load keys and values.
struct Dealt {
  Tile tile;
  Keys keys;
  int low;  // of a cache: keys before it are seen by no row
};
using DealtTiles = Pipeline<Dealt, 2>;

// Parts that builds of 8 or of 16 bits alone have.
struct OwnOfBytes : NoKeyMaps {
  StageOf<TurnedTiles> turned[kStages];
  Barriers<kStages> of_turned;
  int no_more[kStages];  // in place of a tile of v

  __device__ __forceinline__ void init() {
    of_turned.init(kTurners, Warps::arrivals(kWarpgroups, 1));
    for (int& more : no_more) more = 0;
  }
};
struct OwnOfHalves : std::conditional_t<kMapped, KeyMaps<kTileSlots>, NoKeyMaps> {
  DealtTiles dealt;
  Signal ask;                                                         // for the next tile
  alignas(16) uint8_t extra[kWarpgroups][4][kOwn ? 16 : kExtraRoom];  // by warp, random bytes or a bias

  __device__ __forceinline__ void init() { dealt.init(1, 2), ask.init(); }
};

struct Shared {
  StageOf<QueryTiles> q[kWarpgroups][kQStages];
  StageOf<KeyTiles> k[kStages];
  StageOf<ValueTiles> v[kStages];
  std::conditional_t<kFp8, OwnOfBytes, OwnOfHalves> own;
  Barriers<kQStages> of_q[kWarpgroups];
  Barriers<kStages> of_k, of_v;
  Tile tile[kWarpgroups][kTileSlots];

  __device__ __forceinline__ void init() {
    for (auto& each : of_q) each.init(1, Warps::arrivals(1, 1));
    of_k.init(1, Warps::arrivals(kWarpgroups, 1));
    of_v.init(1, kFp8 ? kTurners : Warps::arrivals(kWarpgroups, 1));
    own.init();
  }
};
static_assert(sizeof(Shared) <= 232448, "a CTA of Hopper has 227 KB of shared memory");

}  // namespace tilekiln::cuda::fmha_fwd
