// SPDX-License-Identifier: MIT
// Persistent CTAs over the tiles of a GEMM: whole tiles are dealt in turn, and the steps along k of the rest evenly
// (stream-K).
//
// Invariants: a worker is a CTA, or a cluster of two (kPairs and TileGrid::pairs) that have a tile's upper and lower
// half. A cluster shares the steps of one tile instead with kSplits and TileGrid::splits (cluster_sum.h). All warps of
// a worker walk the same work in the same order. A worker leaves at most two partials: of the tile that it begins
// inside of, and of one that it begins and does not end. Partials of a tile are added in the order of their steps by
// the worker that comes last, whichever it is: results have the same bits in every run. Named barrier 1 + w is that of
// consumer warpgroup w.
#pragma once

#include <type_traits>

#include "kernels/backends/cuda/ptx.h"
#include "kernels/backends/cuda/tile/tile_grid.h"

namespace tilekiln::cuda {

struct WorkTile { int tile, first, last; };  // steps [first, last) of a tile
struct TileCoord { int m, n, batch; };       // in tiles

template <bool kPairs, bool kSplits = false> struct TileScheduler {
  const TileGrid& grid;
  int whole, at, end;  // the next whole tile; steps of shared tiles
  explicit __device__ __forceinline__ TileScheduler(const TileGrid& grid)
      : grid(grid),
        whole(splits() ? blockIdx.x / grid.splits : worker()),
        at(first_step_of(worker())),
        end(first_step_of(worker() + 1)) {}

  static __device__ __forceinline__ int peers(const TileGrid& grid) { return kPairs ? grid.pairs : 0; }
  __device__ __forceinline__ bool splits() const { return kSplits && grid.splits > 1; }
  __device__ __forceinline__ int peers() const { return peers(grid); }
  __device__ __forceinline__ int ctas() const { return 1 << peers(); }
  __device__ __forceinline__ int rank() const { return blockIdx.x & peers(); }
  __device__ __forceinline__ int worker() const { return blockIdx.x >> peers(); }
  __device__ __forceinline__ int workers() const { return gridDim.x >> peers(); }
  __device__ __forceinline__ int first_step_of(int worker) const {
    return uint32_t(worker) * uint32_t(grid.shared) / uint32_t(workers());
  }

  // Tells whether another whole tile follows the last one of `next`.
  __device__ __forceinline__ bool has_whole() const { return whole < grid.whole; }
  __device__ __forceinline__ bool next(WorkTile& work) {
    if (splits() && whole < grid.tiles) {
      const int part = blockIdx.x % grid.splits;
      work = {whole, grid.steps * part / grid.splits, grid.steps * (part + 1) / grid.splits};
      whole = grid.tiles;
      return true;
    }
    if (whole < grid.whole) {
      work = {whole, 0, grid.steps};
      whole += workers();
      return true;
    }
    if (at >= end) return false;
    const int tile = at / grid.steps, first = at - tile * grid.steps, last = min(grid.steps, first + end - at);
    work = {grid.whole + tile, first, last};
    at += last - first;
    return true;
  }

  // Grouped raster: `group` rows of tiles at a time, down first.
  __device__ __forceinline__ TileCoord coord(const WorkTile& work) const {
    const int each = grid.tiles_m * grid.tiles_n, batch = work.tile / each, in = work.tile - batch * each;
    const int per_group = grid.group * grid.tiles_n, group = in / per_group, rest = in - group * per_group;
    const int rows = min(grid.group, grid.tiles_m - group * grid.group), n = rest / rows;
    return {(group * grid.group + rest - n * rows) * ctas() + rank(), n, batch};
  }
};

// Stream-K fix-up of a shared tile. True in its last worker, where c becomes the sum of all partials; else c is left
// for that one. Of `warpgroups` warpgroups that share the tile this is `warpgroup`; `mine`: the warp's rows are of the
// product; `arrived`: a word of shared memory of the warpgroup's own. kHeld: registers that a thread has for sums and
// partials, 40 fewer than it has.
template <int kHeld = 192, class Scheduler, class Sum, int N>
TILEKILN_DEVICE bool fix_up(const Scheduler& scheduler, const WorkTile& work, Sum (&c)[N], int warpgroup,
                            int warpgroups, int thread, bool mine, unsigned& arrived) {
  using Four = std::conditional_t<std::is_same_v<Sum, float>, float4, int4>;
  const TileGrid& grid = scheduler.grid;
  const int base = scheduler.rank() * scheduler.workers();  // the CTAs of a rank follow each other
  const int tile = work.tile - grid.whole, begin = tile * grid.steps;
  const auto owner = [&](int step) {
    return int((uint32_t(step + 1) * uint32_t(scheduler.workers()) - 1) / uint32_t(grid.shared));
  };
  const auto partial_of = [&](int worker, bool inside) {
    return reinterpret_cast<Four*>(grid.partials) +
           int64_t(((base + worker) * 2 + (inside ? 0 : 1)) * warpgroups + warpgroup) * (N / 4 * 128) + thread;
  };
  const int first = owner(begin), last = owner(begin + grid.steps - 1);
  Four* const to = partial_of(scheduler.worker(), work.first > 0);
  if (mine) {
#pragma unroll
    for (int i = 0; i < N / 4; ++i) to[i * 128] = Four{c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]};
  }
  named_sync(1 + warpgroup, 128);
  if (thread == 0) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(grid.arrivals + (scheduler.rank() * (grid.tiles - grid.whole) + tile) * warpgroups + warpgroup),
                   "r"(last - first)
                 : "memory");
    arrived = before;
  }
  named_sync(1 + warpgroup, 128);
  if (uniform(int(arrived)) != last - first) return false;
  if (!mine) return true;
  // Several partials at once: one after the other they would cost the way to L2 each. Whole ones where kHeld registers
  // hold them beside the sums, else pieces of four float4: ptxas hoists the loads of smaller pieces and spills, the
  // main loop's pipeline state with them.
  constexpr int kRoom = (kHeld - N) / 4, kPieces = N / 4 <= kRoom ? N / 4 : kRoom < 4 ? kRoom : 4;  // of float4
  constexpr int kAtOnce = kRoom / kPieces < 4 ? kRoom / kPieces : 4;
  static_assert(kAtOnce > 0 && N / 4 % kPieces == 0, "registers must hold a piece of a partial beside the sums");
  for (int group = first; group <= last; group += kAtOnce) {
    const Four* from[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int other = min(group + i, last);
      from[i] = partial_of(other, scheduler.first_step_of(other) > begin);
    }
#pragma unroll
    for (int piece = 0; piece < N / 4; piece += kPieces) {
      Four part[kAtOnce][kPieces];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int j = 0; j < kPieces; ++j) part[i][j] = __ldcg(from[i] + (piece + j) * 128);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool is_first = group + i == first, counts = group + i <= last;
        const auto add = [&](Sum& sum, Sum more) { sum = is_first ? more : counts ? sum + more : sum; };
#pragma unroll
        for (int j = 0; j < kPieces; ++j) {
          Sum* const sum = c + (piece + j) * 4;
          add(sum[0], part[i][j].x), add(sum[1], part[i][j].y), add(sum[2], part[i][j].z), add(sum[3], part[i][j].w);
        }
      }
    }
  }
  return true;
}

}  // namespace tilekiln::cuda
