// SPDX-License-Identifier: MIT
// The loader and the writers of the Hopper backward, and the shared memory between them and the warpgroups that
// compute.
#pragma once

#include <type_traits>

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/passes.h"
#include "kernels/backends/cuda/tile/pipeline.h"
#include "kernels/backends/cuda/tile/roles.h"
#include "kernels/backends/cuda/tile/shared_tile.h"

namespace tilekiln::cuda::fmha_bwd {

constexpr int kStages = kHdim == 64 || kHdimV > 128 ? 2 : 3, kDsStages = kWide ? 2 : 3;
constexpr int kKeyStages = kHdim == 64 ? 2 : 1;
constexpr int kWriters = kHdim == 64 ? 2 : 3;  // warps; a third costs 64 columns 2 %

// Roles: loader and writers; dK and dV, of head dims above 128 one each, dV first; dQ.
using Movers = Role<1, LOADER_REGISTERS>;
using Multipliers = Role<kWide ? 1 : 2, REGISTERS>;
using DqMultiplier = Role<1, DQ_REGISTERS>;
using Warps = std::conditional_t<kWide, NamedRoles<Movers, Multipliers, Multipliers, DqMultiplier>,
                                 NamedRoles<Movers, Multipliers, DqMultiplier>>;
constexpr int kThreads = Warps::kThreads;

using KeyTile = SharedTile<BuildElement, kKeys, kHdim, Major::K>;
using ValueTile = SharedTile<BuildElement, kKeys, kHdimV, Major::K>;
using QueryTile = SharedTile<BuildElement, kQueryRows, kHdim, Major::K>;
using GradientTile = SharedTile<BuildElement, kQueryRows, kHdimV, Major::K>;  // dO
using DsTile = SharedTile<BuildElement, kQueryRows, kKeys, Major::MN>;        // dS, of which a row is a key
struct KeyTiles {
  KeyTile k;
  ValueTile v;
};
struct DqPlace {
  float* to;  // where dQ is to be added
  int first;  // nothing was there before
};
struct Weights { uint4 word[kQueryRows / 16][128]; };  // P^T before dropout, in the order of threads (wide.h)
struct NoWeights {
  __device__ __forceinline__ void init(int, int) {}
};

using KeyPipe = PipelineApart<KeyTiles, kKeyStages>;
using QueryPipe = PipelineApart<QueryTile, kStages>;
using GradientPipe = PipelineApart<GradientTile, kStages>;
using DsPipe = PipelineApart<DsTile, kDsStages>;
using DqPlaces = Pipeline<DqPlace, kWriters>;  // a stage a writer
using WeightPipe = Pipeline<Weights, 2>;
template <class Pipe> using Loader = Producer<Pipe, CountedState<Pipe::kStages>>;
template <class Pipe> struct Reader : Consumer<Pipe, CountedState<Pipe::kStages>> {
  __device__ __forceinline__ Reader(typename Pipe::Handle pipe, int lane, uint32_t count)
      : Consumer<Pipe, CountedState<Pipe::kStages>>(pipe, lane) {
    this->at.count = count;
  }
};

struct Shared {
  KeyTiles of_keys[kKeyStages];
  QueryTile q[kStages];
  GradientTile dout[kStages];
  DsTile of_ds[kDsStages];
  std::conditional_t<kWide, WeightPipe, NoWeights> weights;
  alignas(16) float lse[kStages][kQueryRows], delta[kStages][kQueryRows];  // with q and with dout
  DqPlaces places;
  Barriers<kKeyStages> key_barriers;
  Barriers<kStages> q_barriers, dout_barriers;
  Barriers<kDsStages> ds_barriers;

  __device__ __forceinline__ KeyPipe keys() { return {of_keys, key_barriers}; }
  __device__ __forceinline__ QueryPipe queries() { return {q, q_barriers}; }
  __device__ __forceinline__ GradientPipe gradients() { return {dout, dout_barriers}; }
  __device__ __forceinline__ DsPipe ds() { return {of_ds, ds_barriers}; }

  __device__ __forceinline__ void init() {
    key_barriers.init(1, Warps::arrivals(3));
    q_barriers.init(1, Warps::arrivals(2)), dout_barriers.init(1, Warps::arrivals(2));
    ds_barriers.init(Warps::arrivals(Multipliers::kWarpgroups), Warps::arrivals(1));
    places.init(1, Warps::arrivals(1));
    weights.init(Warps::arrivals(1), Warps::arrivals(1));
  }
};
static_assert(sizeof(Shared) <= 232448, "a block of Hopper has 227 KB of shared memory");

// The coordinates of a sequence's row 0 in a tensor map (coordinates.h).
struct Place {
  int row, sequence, batch;
  __device__ __forceinline__ Outer outer(int head) const { return {sequence, batch, head}; }
};

template <bool kPacked> TILEKILN_DEVICE void load(const Params& p, Shared& s, int lane) {
  const Order<kQueryRows, kKeys, kPacked> order(p);
  uint32_t step = 0, turns = 0;
  Turn t;
  for (int x = 0; x < order.turns(); ++x) {
    if (!order.turn(x, t)) continue;
    if (lane == 0) {
      const int b = t.b, head_k = key_head(p, t.share - b * p.shares);
      const Loader<KeyPipe> keys(s.keys(), {turns});
      const KeyTiles& tiles = keys.acquire();
      keys.expect(sizeof(KeyTiles));
      Place of_keys{0, 0, b}, of_queries{0, 0, b};
      if constexpr (kPacked) {
        of_keys = {kFar - t.of.seqlen_k, start_k(p, b) + t.of.seqlen_k, kFar};
        of_queries = {kFar - t.of.seqlen_q, start_q(p, b) + t.of.seqlen_q, kFar};
      }
      tiles.k.load_rows(p.k, keys.full(), of_keys.row + t.tile * kKeys, of_keys.outer(head_k));
      tiles.v.load_rows(p.v, keys.full(), of_keys.row + t.tile * kKeys, of_keys.outer(head_k));
      const int64_t first_tile = tile_of<kQueryRows>(p, b, t.head, 0);
      int g, m;
      order.first_step(t, g, m);
      for (int c = 0; c < t.length; ++c, ++step, order.next_step(t, g, m)) {
        const int head = t.head + g, row = of_queries.row + m * kQueryRows;
        const int64_t rows = (first_tile + g * order.head_tiles() + m) * kQueryRows;
        const auto load_step = [&](const auto& to, const TensorMap& map, float (&line)[kQueryRows],
                                   const float* of_line) {
          const auto& tile = to.acquire();
          to.expect(sizeof(tile) + sizeof(line));
          tile.load_rows(map, to.full(), row, of_queries.outer(head));
          bulk_load(shared_address(line), of_line + rows, sizeof(line), to.full());
        };
        const Loader<QueryPipe> queries(s.queries(), {step});
        const Loader<GradientPipe> gradients(s.gradients(), {step});
        load_step(queries, p.q, s.lse[queries.at.index()], p.lse_log2);
        load_step(gradients, p.dout, s.delta[gradients.at.index()], p.delta);
      }
    }
    ++turns;
    __syncwarp();
  }
}

// The writers take the dQ of steps in turn: one waits for its add to be done while others look for the next turns.
template <bool kPacked> TILEKILN_DEVICE void write_dq(const Params& p, Shared& s, int writer, int lane) {
  const Order<kQueryRows, kKeys, kPacked> order(p);
  Producer<DqPlaces, OwnState> places(s.places, {writer});
  uint32_t step = 0;
  int others = writer;  // steps until this writer's next one
  Turn t;
  for (int x = 0; x < order.turns(); ++x) {
    if (!order.turn(x, t)) continue;
    const int64_t first_tile = tile_of<kQueryRows>(p, t.b, t.head, 0);
    int g, m;
    order.first_step(t, g, m);
    for (int c = 0; c < t.length; ++c, ++step, order.next_step(t, g, m)) {
      if (others-- > 0) continue;
      others = kWriters - 1;
      const int before = order.rank(t, g, m, lane);
      if (lane == 0) {
        const int64_t at = (first_tile + g * order.head_tiles() + m) * p.partials + t.partial;
        float* sums = p.dq_sums + at * (kTileBytes / 4);
        unsigned* counter = p.counters + at;
        if (before > 0) await_turn(counter, before);
        DqPlace& place = places.next();
        place.to = sums, place.first = before == 0;
        places.commit();
        places.wait_for_release();
        end_turn(counter);
      }
      places.advance();
      __syncwarp();
    }
  }
}

// Warp 0 loads, the next ones write.
template <bool kPacked> TILEKILN_DEVICE void move(const Params& p, Shared& s, const Warpgroup& w) {
  const int warp = w.warp();
  if (warp == 0) load<kPacked>(p, s, w.lane());
  if (warp > 0 && warp <= kWriters) write_dq<kPacked>(p, s, warp - 1, w.lane());
}

}  // namespace tilekiln::cuda::fmha_bwd
