// Shares of CTAs in the tiles of a product: whole tiles, dealt in turn, and the steps along k of the rest, of which every CTA has
// an equal run. Parts of a tile are added in the order of their steps by the CTA that comes last, whichever it is: results have
// the same bits in every run.
#pragma once

#include "kernels/backends/cuda/ptx.h"
#include "kernels/gemm/gemm/cuda/row.h"

namespace tilekiln::cuda::gemm {

// The taker of a share: a CTA, or a cluster of two (Row::pairs, where kPairs), which have a tile's upper and lower half.
template <bool kPairs> struct Worker {
  const Row& p;
  __device__ __forceinline__ int shift() const { return kPairs ? p.pairs : 0; }
  __device__ __forceinline__ int ctas() const { return 1 << shift(); }
  __device__ __forceinline__ int rank() const { return blockIdx.x & shift(); }
  __device__ __forceinline__ int number() const { return blockIdx.x >> shift(); }
  __device__ __forceinline__ int count() const { return gridDim.x >> shift(); }
  // Of the steps of tiles from p.whole on, the first of a worker.
  __device__ __forceinline__ int begin_of(int worker) const {
    return uint32_t(worker) * uint32_t(p.shared) / uint32_t(count());
  }
};

// Steps [first, last) of a tile.
struct Piece { int tile, first, last; };

template <bool kPairs> struct Work {
  const Worker<kPairs> worker;
  int next_whole, at, end;  // steps of the tiles from p.whole on
  explicit __device__ __forceinline__ Work(const Row& p)
      : worker{p},
        next_whole(worker.number()),
        at(worker.begin_of(worker.number())),
        end(worker.begin_of(worker.number() + 1)) {}
  __device__ __forceinline__ bool next(Piece& piece) {
    const Row& p = worker.p;
    if (next_whole < p.whole) {
      piece = {next_whole, 0, p.steps};
      next_whole += worker.count();
      return true;
    }
    if (at >= end) return false;
    const int tile = at / p.steps, first = at - tile * p.steps, last = min(p.steps, first + end - at);
    piece = {p.whole + tile, first, last};
    at += last - first;
    return true;
  }
};

// A CTA leaves at most two parts: of the tile that it begins inside of, and of one that it begins and does not end.
template <int N> TILEKILN_DEVICE float4* part_of(const Row& p, int cta, bool begun, int team, int teams) {
  return p.parts + int64_t((cta * 2 + (begun ? 0 : 1)) * teams + team) * (N / 4 * 128);
}

// The sums of all steps of a piece's tile, where this is its last worker; else its part is left for that one. Of team `own` of a CTA's
// `each` teams of 128 threads, of which `mine` have sums that count (the same for all of a warp); `said`: a word of shared memory of the
// team's own.
template <bool kPairs, int N>
TILEKILN_DEVICE bool join(const Worker<kPairs>& worker, const Piece& piece, float (&sum)[N], int own, int each,
                          int thread, bool mine, unsigned& said) {
  const Row& p = worker.p;
  const int base = worker.rank() * worker.count();  // the CTAs of a rank follow each other
  const int tile = piece.tile - p.whole, begin = tile * p.steps;
  const auto owner = [&](int step) {
    return int((uint32_t(step + 1) * uint32_t(worker.count()) - 1) / uint32_t(p.shared));
  };
  const int first = owner(begin), last = owner(begin + p.steps - 1);
  float4* const to = part_of<N>(p, base + worker.number(), piece.first > 0, own, each) + thread;
  if (mine) {
#pragma unroll
    for (int i = 0; i < N / 4; ++i)
      to[i * 128] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
  }
  named_sync(1 + own, 128);
  if (thread == 0) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(p.arrivals + (worker.rank() * (p.tiles - p.whole) + tile) * each + own), "r"(last - first)
                 : "memory");
    said = before;
  }
  named_sync(1 + own, 128);
  if (uniform(int(said)) != last - first) return false;
  if (!mine) return true;
  // As many parts at once as registers hold: one after the other they would cost the way to L2 each.
  constexpr int kAtOnce = 4, kPieces = N > 32 ? 4 : N / 4;  // of float4
  for (int group = first; group <= last; group += kAtOnce) {
#pragma unroll
    for (int piece = 0; piece < N / 4; piece += kPieces) {
      float4 part[kAtOnce][kPieces];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int other = min(group + i, last);
        const float4* const from = part_of<N>(p, base + other, worker.begin_of(other) > begin, own, each) + thread;
#pragma unroll
        for (int j = 0; j < kPieces; ++j) part[i][j] = __ldcg(from + (piece + j) * 128);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int j = 0; j < kPieces; ++j) {
          float* const to_sum = sum + (piece + j) * 4;
          const float4 more = part[i][j];
          const bool is_first = group + i == first, counts = group + i <= last;
          to_sum[0] = is_first ? more.x : counts ? to_sum[0] + more.x : to_sum[0];
          to_sum[1] = is_first ? more.y : counts ? to_sum[1] + more.y : to_sum[1];
          to_sum[2] = is_first ? more.z : counts ? to_sum[2] + more.z : to_sum[2];
          to_sum[3] = is_first ? more.w : counts ? to_sum[3] + more.w : to_sum[3];
        }
      }
    }
  }
  return true;
}

}  // namespace tilekiln::cuda::gemm
