// SPDX-License-Identifier: MIT
// GEMM on Hopper: out = epilogue(a b) for a and b of 16 or 8 bits, summed in fp32, those of int8 in int32.
//
// Persistent and warp-specialised: a producer warpgroup (TMA) runs ahead through a pipeline of stages, also into the
// next tile while the two consumers (wgmma), each with half of a tile's rows, are in their epilogue. Tiles are walked
// in grouped raster order, and where they or those of the last wave are too few, CTAs share their steps, as a cluster
// (tile/cluster_sum.h) or by way of memory (tile/scheduler.h). Of large products two CTAs, a cluster, have tiles one
// below the other: each multicasts half of b's columns to both, a third less for L2 to send, whose power the clock gets
// (8192^3: 1,425 MHz for 1,395, H100).
// Either operand may be contiguous along k or along its lines (rows of a, columns of b): four builds. Operands of 8
// bits are contiguous along k (wgmma turns no others), and the sums of every stage of 128 are added in fp32 (kApart):
// the tensor cores keep 14 bits of a sum, which is a per cent of it after some thousands of k. gemm_hopper_fast does
// not. Factors of blocks are those of such a stage, and of 128 columns: they multiply its sums on their way.
//
// Members of How, which a source's kernels are of: form(i), the i-th Form; loader(form) and consumer(form), registers
// of a thread; shares(form): CTAs may share a tile's steps; kPlain: alpha is the whole epilogue, and nothing is
// gathered.
// -D: LINES_A, LINES_B (1: contiguous along its lines); TILEKILN_FP16 for fp16; BLOCKS (1: with factors of blocks, of
// e4m3); PARTS (1: of fp32 in parts of bf16, parts.cu); TILEKILN_FP8 for e4m3, TILEKILN_BF8 for e5m2, TILEKILN_INT8, of
// whose products TILEKILN_FP16 makes fp16, else bf16.
#pragma once

#include "kernels/backends/cuda/tile/cluster_sum.h"
#include "kernels/backends/cuda/tile/mainloop.h"
#include "kernels/backends/cuda/tile/roles.h"
#include "kernels/backends/cuda/tile/scheduler.h"
#include "kernels/gemm/gemm/cuda/aligned.h"
#include "kernels/gemm/gemm/cuda/block_factors.h"
#include "kernels/gemm/gemm/cuda/gather.h"

namespace tilekiln::cuda::gemm {

#ifndef BLOCKS
#define BLOCKS 0
#endif
#ifndef PARTS
#define PARTS 0
#endif

constexpr matrix::Dtype kBytes = std::is_same_v<BuildElement, e4m3>   ? matrix::Dtype::fp8
                                 : std::is_same_v<BuildElement, e5m2> ? matrix::Dtype::bf8
                                 : std::is_same_v<BuildElement, s8>   ? matrix::Dtype::int8
                                                                      : matrix::Dtype();
constexpr int kDepth = 128 / BuildElement::kBytes;  // along k of a stage
constexpr bool kParts = PARTS;
// Sums of fp8 and bf8 are rounded by the tensor cores, those of int8 are exact; those of parts, cut off at fp32's
// length, are to be as good as rounded ones.
constexpr bool kRounds = kParts || (BuildElement::kBytes == 1 && std::is_same_v<ProductSum, float>);
constexpr Major kMajorA = LINES_A ? Major::MN : Major::K, kMajorB = LINES_B ? Major::MN : Major::K;
constexpr int kOfWarpgroup = 1;  // the first named barrier: fix_up's
constexpr int kOfTurn = 10;      // the first of those whose warpgroups take turns
constexpr bool kBlocks = BLOCKS;

// Stores a tile's sums times alpha. `inside`: the tile lies in out, whose rows are aligned.
template <class P, int N, int kBoxes>
TILEKILN_DEVICE void finish_plain(const P& p, const StoreBoxes<kBoxes>& boxes, float (&sum)[N], bool inside, bool mine,
                                  int batch, int row, int column) {
  each(sum, [&](float x) { return x * p.alpha; });
  if (inside) return store_aligned<false>(p, boxes, sum, batch, row, column);
  if (!mine) return;
  in_turns<16>(sum, [&](Sums& v, int at) { store(p, v, batch, row + boxes.lane / 4, column + 32 * at, boxes.lane); });
}

// The parts of fp32 in the i-th of the 3 or 6 products of a block along k, the small ones first.
TILEKILN_DEVICE int part_of_a(int products, int i) { return (products == 3 ? 0b01 : 0b0001000110) >> 2 * i & 3; }
TILEKILN_DEVICE int part_of_b(int products, int i) { return (products == 3 ? 0b0100 : 0b0100100100) >> 2 * i & 3; }

template <class How, int kForm, bool kApart = kRounds> struct Kernel {
  static constexpr Form kOf = How::form(kForm);
  static constexpr bool kPlain = How::kPlain, kGathers = !kPlain && !kParts;
  static constexpr int kColumns = kOf.columns, kBoxes = kOf.boxes, kPart = kOf.apart;
  static constexpr bool kTurns = kOf.turns, kShares = How::shares(kOf);
  static constexpr int kRows = kOf.rows(), kSteps = kDepth * kOf.deep;
  static constexpr bool kPairs = kOf.ctas == 2, kSplits = kOf.splits > 1;
  static constexpr bool kHalves = !kPlain && kRows == kTileRows && kColumns <= kHalvedColumns;
  static constexpr int kRegisters = How::consumer(kOf);
  using Warps = Roles<kOf.consumers, How::loader(kOf), kRegisters>;
  static constexpr int kHeld = kRegisters - 40;
  static constexpr int kRowsCleared = kOfWarpgroup + Warps::kConsumers;
  struct Stage {
    SharedTile<BuildElement, kRows, kSteps, kMajorA> a;
    SharedTile<BuildElement, kColumns, kSteps, kMajorB> b;
  };
  using Pipe = Pipeline<Stage, kOf.stages, kPairs>;
  using Boxes = StoreBoxes<kBoxes>;
  using Scheduler = TileScheduler<kPairs, kSplits>;
  struct Shared {
    Pipe pipe;
    alignas(1024) uint8_t boxes[4 * Warps::kConsumers][kBoxes][Boxes::kBytes];  // of a warp each
    unsigned arrived[Warps::kConsumers];
  };

  // Fills a stage for every step of every tile.
  static __device__ __forceinline__ void produce(const Params& p, Shared& s, int thread) {
    const bool gather_a = kGathers && p.features & kGatherA, gather_b = kGathers && p.features & kGatherB;
    const uint32_t bytes = (gather_a ? 0 : p.grid.rows_a * 128 * kOf.deep) + (gather_b ? 0 : sizeof(Stage::b));
    Scheduler scheduler(p.grid);
    Producer<Pipe> pipe(s.pipe);
    for (WorkTile work; scheduler.next(work);) {
      const TileCoord tile = scheduler.coord(work);
      const int row = tile.m * kRows, column = tile.n * kColumns;
      // Zeros that TMA fills in take as long as rows that it copies.
      const int boxes = kHalves && p.grid.rows_a == 64 && row + 64 < p.m ? 2 : 1;
      const int batch_a = p.a_batches ? tile.batch : 0, batch_b = p.b_batches ? tile.batch : 0;
      for (int step = work.first; step < work.last; ++step, pipe.advance()) {
        int k = step * kSteps, of_b = k;
        if constexpr (kParts) {
          const int block = step / 3 >> (p.products == 6), product = step - block * p.products;
          k = part_of_a(p.products, product) * p.whole + block * kSteps;
          of_b = part_of_b(p.products, product) * p.whole + block * kSteps;
        }
        Stage& stage = pipe.acquire();
        if (thread == 0) {
          pipe.expect(bytes + (gather_a ? 0 : (boxes - 1) * p.grid.rows_a * 128 * kOf.deep));
          if (!gather_a) stage.a.load(p.a, pipe.full(), row, k, batch_a, p.grid.rows_a);
          if (kHalves && !gather_a && boxes == 2) stage.a.load(p.a, pipe.full(), row + 64, k, batch_a, 64, 64);
          if constexpr (kPairs) {
            if (!gather_b)
              stage.b.load_multicast(p.b, pipe.full(), column, of_b, batch_b, scheduler.rank(), scheduler.ctas());
          } else {
            if (!gather_b) stage.b.load(p.b, pipe.full(), column, of_b, batch_b, kColumns);
          }
        }
        if (gather_a || gather_b) {
          if (gather_a) gather(stage.a, p.from_a, p.m, p.k, row, k, batch_a, thread);
          if (gather_b) gather(stage.b, p.from_b, p.n, p.k, column, k, batch_b, thread);
          pipe.commit_stores(thread & 31);
        }
      }
    }
  }

  static __device__ __forceinline__ BlockFactors<kColumns / kPart> factors(const Params& p, const TileCoord& tile,
                                                                           const Warpgroup& w, int first, int last) {
    const int row = tile.m * kRows + w.index * 64 + w.thread / 32 * 16 + w.lane() / 4;
    const auto block = [&](int i) { return min(tile.n * kColumns / 128 + i, (p.n - 1) / 128); };
    return {p.of_a, row, p.m - 1, p.of_b, block, first, last};
  }

  // Multiplies the steps of every tile, then its epilogue.
  static __device__ __forceinline__ void consume(const Params& p, Shared& s, Warpgroup w) {
    const int lane = w.lane();
    Scheduler scheduler(p.grid);
    Consumer<Pipe> pipe(s.pipe, lane, scheduler.peers());
    const int line = kTurns ? 0 : 64 * w.index;  // of the warpgroup in a tile
    int turn_of = 0;                             // tiles so far
    for (WorkTile work; scheduler.next(work);) {
      const int first = uniform(work.first), last = uniform(work.last);
      // The one multiplies while the other stores. It begins when the other has seen its last stage: parities tell two
      // rounds of the ring apart, not three.
      if constexpr (kTurns) {
        if (turn_of++ % 2 != w.index) {
          pipe.at.skip(last - first);
          continue;
        }
        if (turn_of > 1) named_sync(kOfTurn + w.index, 256);
      }
      Fragment<kColumns> c;
      if constexpr (kBlocks)
        multiply_apart<kPart>(pipe, c, line, first, last, factors(p, scheduler.coord(work), w, first, last));
      else if constexpr (kApart)
        multiply_apart<kPart>(pipe, c, line, first, last, PlainSums());
      else
        multiply_stages(pipe, c, line, first, last);
      if (kTurns && scheduler.has_whole()) named_arrive(kOfTurn + 1 - w.index, 256);
      // The divisions behind a tile's coordinates, and its bias's way to L1, pass under the last products.
      TileCoord tile = scheduler.coord(work);
      tile = {tile.m * kRows, tile.n * kColumns, tile.batch};
      asm volatile("" : "+r"(tile.m), "+r"(tile.n), "+r"(tile.batch));
      if constexpr (!kPlain) prefetch_bias(p, tile.n, kColumns, lane);
      if constexpr (!kApart) finish_stages(pipe, c, first, last);
      const int warp = w.warp(), row = tile.m + line + warp * 16;
      const bool mine = row < p.m;
      int turn = 0, turns = kColumns / 32;  // of 32 columns, that this CTA finishes
      if (scheduler.splits()) {
        const int splits = p.grid.splits, rank = blockIdx.x % splits;
        add_over_cluster(c.v, s.pipe.stage, splits, rank, w.index, w.thread, mine);
        turn = turns / splits * rank, turns = turn + turns / splits;
      } else if constexpr (kShares) {
        if (last - first < p.grid.steps &&
            !fix_up<kHeld>(scheduler, work, c.v, w.index, Warps::kConsumers, w.thread, mine, s.arrived[w.index]))
          continue;
      }
      with_numbers(p, c.v, [&](auto& sum) {
        const auto inside = [&] { return p.features & kAligned && tile.m + kRows <= p.m && tile.n + kColumns <= p.n; };
        const auto boxes = [&] { return Boxes{shared_address(s.boxes[w.index * 4 + warp]), lane}; };
        if constexpr (kPlain) {
          finish_plain(p, boxes(), sum, inside(), mine, tile.batch, row, tile.n);
        } else {
          // A narrow tile is well served by the epilogue of any place: a second one would be 60 kB of code.
          if constexpr (kColumns > 64) {
            if (!scheduler.splits() && inside()) {
              finish_aligned(p, boxes(), sum, tile.batch, row, tile.n);
              return;
            }
          } else if (p.features & kBare && !scheduler.splits() && inside()) {
            finish_plain(p, boxes(), sum, true, mine, tile.batch, row, tile.n);
            return;
          }
          if (mine) finish(p, sum, tile.batch, row + lane / 4, tile.n, lane, turn, turns);
        }
      });
    }
  }

  // Clears rows of a's tiles that no copy writes: TMA's zeros each time took half as long again (16 rows, H100).
  static __device__ __forceinline__ void clear_rows(const Params& p, Shared& s, int consumers) {
    const int rows = kTurns ? kRows : consumers * 64, threads = consumers * 128;
    if (p.features & kGatherA || p.grid.rows_a >= rows || (kHalves && p.m > kRows)) return;
    for (auto& stage : s.pipe.stage) {
#pragma unroll
      for (int line = 0; line < kOf.deep; ++line) {
        for (int j = p.grid.rows_a * 8 + int(threadIdx.x) - 128; j < rows * 8; j += threads)
          reinterpret_cast<uint4*>(stage.a.data)[line * kRows * 8 + j] = make_uint4(0, 0, 0, 0);
      }
    }
    async_shared_fence();
    named_sync(kRowsCleared, threads);
  }

  static __device__ __forceinline__ void run(const Params& p) {
    let_next_launch_begin();  // 1 to 8 % of small products
    auto& s = shared_memory<Shared>();
    // Consumers beyond these have no rows of few.
    const int consumers = kTurns ? 2 : kOf.consumers == 2 ? (p.m > 64 ? 2 : 1) : min(kOf.consumers, (p.m + 63) / 64);
    const bool gathers = kGathers && p.features & (kGatherA | kGatherB);
    if (threadIdx.x == 32 && p.grid.steps > 0) {
      if (!(p.features & kGatherA)) ask_for(p.a);
      if (!(p.features & kGatherB)) ask_for(p.b);
    }
    Warps::run<kPairs || kSplits>(
        consumers,
        [&] {
          s.pipe.init(gathers ? 1 + 4 : 1, Warps::arrivals(kTurns ? 1 : consumers, 1 << Scheduler::peers(p.grid)));
        },
        [&](int thread) {
          wait_for_launch_before();
          if (thread == 0 || gathers) produce(p, s, thread);
          if (kSplits && p.grid.splits > 1) attend_cluster_sum();
        },
        [&](Warpgroup w) {
          clear_rows(p, s, consumers);
          wait_for_launch_before();
          consume(p, s, w);
        },
        [&] {
          if (kSplits && p.grid.splits > 1) attend_cluster_sum();
        });
  }
};

}  // namespace tilekiln::cuda::gemm

// The kernel of a form by its name, and what the host must know of its cubin.
#define GEMM(How, name, number, ...)                                                                  \
  extern "C" __global__ void __launch_bounds__(128 * (1 + How::form(number).consumers), How::form(number).together) \
      name(const __grid_constant__ tilekiln::cuda::gemm::Params p) {                                    \
    tilekiln::cuda::gemm::Kernel<How, number __VA_OPT__(, ) __VA_ARGS__>::run(p);                       \
  }
#define GEMM_BUILD(How, threads, shared_bytes)                                                          \
  extern "C" __constant__ tilekiln::cuda::gemm::Build gemm_build = {                                    \
      tilekiln::cuda::gemm::kTileRows,                                                                  \
      How::form(0).columns,                                                                             \
      tilekiln::cuda::gemm::kDepth * How::form(0).deep,                                                 \
      threads,                                                                                          \
      shared_bytes,                                                                                     \
      LINES_A,                                                                                          \
      LINES_B,                                                                                          \
      std::is_same_v<tilekiln::cuda::BuildHalf, tilekiln::cuda::fp16>,                                  \
      int(tilekiln::cuda::gemm::kBytes),                                                                \
      0,                                                                                                \
      tilekiln::cuda::gemm::kBlocks,                                                                    \
      How::kPlain,                                                                                      \
      tilekiln::cuda::gemm::kParts};
