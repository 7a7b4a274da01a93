// SPDX-License-Identifier: MIT
// Grouped GEMM on Hopper: rows in groups, each with a b of its own, whose places are on the device; the roles, the
// pipeline and the epilogue are those of gemm's kernel.h. Of two CTAs, a cluster, with the same rows each multicasts
// half of them to both. e4m3 has factors of blocks, which multiply the sums of a stage on their way, int8 those of rows
// and columns; of both out is bf16.
//
// -D: LINES_B (1: b is contiguous along its columns, 0: along k), LOADER_REGISTERS, REGISTERS; TILEKILN_FP16 for fp16,
// TILEKILN_FP8 for e4m3, TILEKILN_INT8 for int8.
#include "kernels/backends/cuda/tile/mainloop.h"
#include "kernels/backends/cuda/tile/roles.h"
#include "kernels/gemm/gemm/cuda/aligned.h"
#include "kernels/gemm/gemm/cuda/block_factors.h"
#include "kernels/gemm/gemm/cuda/gather.h"
#include "kernels/gemm/grouped_gemm/cuda/group_scheduler.h"
#include "kernels/gemm/grouped_gemm/cuda/of_group.h"

namespace tilekiln::cuda::gemm {

constexpr int kColumns = kForms[0].columns, kBoxes = kForms[0].boxes, kBlock = 128;
constexpr bool kBlocks = std::is_same_v<BuildElement, e4m3>, kInt8 = std::is_same_v<BuildElement, s8>;
constexpr int kDepth = 128 / BuildElement::kBytes;
using Warps = Roles<2, LOADER_REGISTERS, REGISTERS>;
using Scheduler = GroupScheduler<kTileRows, kColumns>;
using Boxes = StoreBoxes<kBoxes>;
struct Stage {
  SharedTile<BuildElement, kTileRows, kDepth, Major::K> a;
  SharedTile<BuildElement, kColumns, kDepth, LINES_B ? Major::MN : Major::K> b;
};
using Pipe = Pipeline<Stage, kForms[0].stages, true>;
struct Shared {
  Pipe pipe;
  alignas(1024) uint8_t boxes[4 * Warps::kConsumers][kBoxes][Boxes::kBytes];  // of a warp each
};
static_assert(sizeof(Shared) <= 232448, "a CTA of Hopper has 227 KB of shared memory");

// Fills a stage for every step of every tile.
TILEKILN_DEVICE void produce(const GroupParams& of, Shared& s, int thread) {
  const Params& p = of.product;
  const bool gather_a = p.features & kGatherA, gather_b = p.features & kGatherB;
  const uint32_t bytes = (gather_a ? 0 : sizeof(Stage::a)) + (gather_b ? 0 : sizeof(Stage::b));
  Producer<Pipe> pipe(s.pipe);
  for (Scheduler tile(of); tile.next();) {
    const int batch = p.b_batches ? tile.group : 0;
    for (int step = 0; step < p.grid.steps; ++step, pipe.advance()) {
      const int k = step * kDepth;
      Stage& stage = pipe.acquire();
      if (thread == 0) {
        pipe.expect(bytes);
        if (!gather_a) stage.a.load_multicast(p.a, pipe.full(), tile.row, k, 0, tile.rank(), tile.ctas());
        if (!gather_b) stage.b.load(p.b, pipe.full(), tile.n, k, batch, kColumns);
      }
      if (gather_a || gather_b) {
        if (gather_a) gather(stage.a, p.from_a, tile.end, p.k, tile.row, k, 0, thread);
        if (gather_b) gather(stage.b, p.from_b, p.n, p.k, tile.n, k, batch, thread);
        pipe.commit_stores(thread & 31);
      }
    }
  }
}

TILEKILN_DEVICE BlockFactors<kColumns / kBlock> factors(const GroupParams& of, const Scheduler& tile, int row,
                                                        int steps) {
  Factors b = of.product.of_b;
  b.data += tile.group * of.factors_step;
  const auto block = [&](int i) { return min(tile.n / kBlock + i, (of.product.n - 1) / kBlock); };
  return {of.product.of_a, row, tile.end - 1, b, block, 0, steps};
}

// Multiplies the steps of every tile, then its epilogue.
TILEKILN_DEVICE void consume(const GroupParams& of, Shared& s, Warpgroup w) {
  const Params& p = of.product;
  const int lane = w.lane(), warp = w.warp(), steps = uniform(p.grid.steps);
  const Boxes boxes = {shared_address(s.boxes[w.index * 4 + warp]), lane};
  Consumer<Pipe> pipe(s.pipe, lane, p.grid.pairs);
  for (Scheduler tile(of); tile.next();) {
    Fragment<kColumns> c;
    const int row = tile.row + w.index * 64 + warp * 16;
    if constexpr (kBlocks) {
      multiply_apart<kBlock>(pipe, c, 64 * w.index, 0, steps, factors(of, tile, row + lane / 4, steps));
    } else {
      multiply_stages(pipe, c, 64 * w.index, 0, steps);
      finish_stages(pipe, c, 0, steps);
    }
    const OfGroup group = group_of(of, tile.group, tile.end);
    if (row >= tile.end) continue;
    // Extra matrices and factors are read by rows: without all of the warp's, each place is looked at.
    const bool whole = (p.extra[0].data == nullptr && !kInt8) || row + 16 <= tile.end;
    with_numbers(p, c.v, [&](auto& sum) {
      if (p.features & kAligned && tile.n + kColumns <= p.n && whole)
        finish_aligned<true>(group, boxes, sum, 0, row, tile.n);
      else
        finish(group, sum, 0, row + lane / 4, tile.n, lane);
    });
  }
}

TILEKILN_DEVICE void run(const GroupParams& of) {
  let_next_launch_begin();
  auto& s = shared_memory<Shared>();
  const Params& p = of.product;
  const bool gathers = p.features & (kGatherA | kGatherB);
  if (threadIdx.x == 32 && p.grid.steps > 0) {
    if (!(p.features & kGatherA)) ask_for(p.a);
    if (!(p.features & kGatherB)) ask_for(p.b);
  }
  Warps::run<true>(
      Warps::kConsumers,
      [&] { s.pipe.init(gathers ? 1 + 4 : 1, Warps::arrivals(Warps::kConsumers, 1 << p.grid.pairs)); },
      [&](int thread) {
        wait_for_launch_before();
        if (thread == 0 || gathers) produce(of, s, thread);
      },
      [&](Warpgroup w) {
        wait_for_launch_before();
        consume(of, s, w);
      });
}

constexpr int kDtype = kBlocks ? int(matrix::Dtype::fp8) : kInt8 ? int(matrix::Dtype::int8) : 0;

}  // namespace tilekiln::cuda::gemm

using namespace tilekiln::cuda;

extern "C" __constant__ gemm::Build gemm_build = {gemm::kTileRows,
                                                  gemm::kColumns,
                                                  gemm::kDepth,
                                                  gemm::Warps::kThreads,
                                                  sizeof(gemm::Shared),
                                                  0,
                                                  LINES_B,
                                                  std::is_same_v<BuildHalf, fp16>,
                                                  gemm::kDtype,
                                                  1,
                                                  gemm::kBlocks};
extern "C" __global__ void __launch_bounds__(gemm::Warps::kThreads, 1)
    gemm_groups(const __grid_constant__ gemm::GroupParams p) {
  gemm::run(p);
}
