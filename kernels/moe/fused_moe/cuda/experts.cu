// SPDX-License-Identifier: MIT
// A mixture of experts on Hopper, in launches between which the host does not wait: the rows of each expert (lists.h),
//
//   h = act(x[token of row] gate^T) * (x[token of row] up^T)     of gathered rows, gate and up in one tile
//   s = h down^T                                                  fp32, a row each
//   out[token] = sum of weight * s[row]                           in the order of experts: no atomics, the same bits
//
// Roles, pipeline and stores are those of grouped products. Tiles are of 128 rows of one expert; a warpgroup without rows
// lets stages go by. Rows are gathered beforehand, for TMA, and two CTAs with the same rows multicast half of them each:
// copied one by one in the load (cp.async), behind which stages land late, many took 1.12 of the time (8,192 rows of
// Mixtral, H200), and few read weights at .74 of memory's speed.
//
// -D: LINES_B (1: weights are contiguous along their rows, 0: along k), LOADER_REGISTERS, REGISTERS; TILEKILN_FP16.
#include "kernels/backends/cuda/tile/mainloop.h"
#include "kernels/backends/cuda/tile/roles.h"
#include "kernels/gemm/gemm/cuda/aligned.h"
#include "kernels/gemm/grouped_gemm/cuda/of_group.h"
#include "kernels/moe/fused_moe/cuda/lists.h"

namespace tilekiln::cuda::moe {

using gemm::kTileRows;
using gemm::OfGroup;
constexpr int kDepth = 64;
using Warps = Roles<2, LOADER_REGISTERS, REGISTERS>;

// Workers, CTAs or clusters of two with neighbouring columns, walk the tiles of rows that `lists` made; inside an expert
// rows first: its columns of b stay in L2.
template <int kColumns> struct Scheduler {
  const Rows& p;
  int tiles_n, tile, tiles;
  int expert, row, end, n;
  explicit __device__ __forceinline__ Scheduler(const Rows& p)
      : p(p), tiles_n((p.of.product.n - 1) / (kColumns << peers()) + 1), tile(blockIdx.x >> peers()) {
    tiles = __ldcg(p.tile_count) * tiles_n;
  }
  __device__ __forceinline__ int peers() const { return p.of.product.grid.pairs; }
  __device__ __forceinline__ int ctas() const { return 1 << peers(); }
  __device__ __forceinline__ int rank() const { return blockIdx.x & peers(); }
  __device__ __forceinline__ bool next() {
    if (tile >= tiles) return false;
    const int4 of = __ldcg(reinterpret_cast<const int4*>(p.tiles + tile / tiles_n));
    expert = of.x, end = of.z;
    const int down = (end - of.y - 1) / kTileRows + 1, in = tile - of.w * tiles_n, column = in / down;
    row = of.y + (in - column * down) * kTileRows;
    n = (column * ctas() + rank()) * kColumns;
    tile += gridDim.x >> peers();
    return true;
  }
};

template <int kFormIndex, bool kGated> struct Kernel {
  static constexpr Form kForm = kForms[kFormIndex];
  static constexpr int kColumns = kForm.columns, kOut = kGated ? kColumns / 2 : kColumns;
  struct Stage {
    SharedTile<BuildElement, kTileRows, kDepth, Major::K> a;
    SharedTile<BuildElement, kColumns, kDepth, LINES_B ? Major::MN : Major::K> b;
  };
  using Pipe = Pipeline<Stage, kForm.stages, true>;
  using Boxes = StoreBoxes<kForm.boxes>;
  struct Shared {
    Pipe pipe;
    alignas(1024) uint8_t boxes[4 * Warps::kConsumers][kForm.boxes][Boxes::kBytes];  // of a warp each
  };
  static_assert(sizeof(Shared) <= 232448, "a CTA of Hopper has 227 KB of shared memory");

  // Columns of gate and of up, or of one matrix, in two halves of a stage.
  static __device__ __forceinline__ void load_b(const Rows& p, uint64_t& full, Stage& stage,
                                                const Scheduler<kOut>& tile, int k) {
    constexpr int kHalf = kColumns / 2;
    const gemm::Params& product = p.of.product;
    const int expert = product.b_batches ? tile.expert : 0;  // 0: they share one
    stage.b.load(product.b, full, tile.n, k, expert, kHalf);
    stage.b.load(product.b, full, tile.n + (kGated ? product.n : kHalf), k, expert, kHalf, kHalf);
  }

  static __device__ __forceinline__ void produce(const Rows& p, Shared& s) {
    const gemm::Params& product = p.of.product;
    Producer<Pipe> pipe(s.pipe);
    for (Scheduler<kOut> tile(p); tile.next();) {
      for (int step = 0; step < product.grid.steps; ++step, pipe.advance()) {
        Stage& stage = pipe.acquire();
        pipe.expect(sizeof(Stage::a) + sizeof(Stage::b));
        stage.a.load_multicast(product.a, pipe.full(), tile.row, step * kDepth, 0, tile.rank(), tile.ctas());
        load_b(p, pipe.full(), stage, tile, step * kDepth);
      }
    }
  }

  // c has the sums of gate, then those of up: out = act(gate + its bias), rounded, times up + its bias.
  static __device__ __forceinline__ void finish_gated(const Rows& p, const OfGroup& of, const float* bias,
                                                      const Boxes& boxes, const float (&c)[kOut], int row, int column) {
    const bool aligned = of.features & gemm::kAligned && column + kOut <= of.n;
#pragma unroll
    for (int at = 0; at < kOut / 64; ++at) {
      const int first = column + 64 * at, mine = first + (boxes.lane & 3) * 2;
      float h[32], up[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) h[i] = c[32 * at + i], up[i] = c[kOut / 2 + 32 * at + i];
      if (bias != nullptr) {
#pragma unroll
        for (int d = 0; d < 8; ++d) {
          const float2 of_gate = gemm::load_numbers(bias, mine + 8 * d, of.n);
          const float2 of_up = gemm::load_numbers(bias + of.n, mine + 8 * d, of.n);
          gemm::each_column(h, d, [&](int, float& one, float& other) { one += of_gate.x, other += of_gate.y; });
          gemm::each_column(up, d, [&](int, float& one, float& other) { one += of_up.x, other += of_up.y; });
        }
      }
      gemm::activate(of, h);
#pragma unroll
      for (int i = 0; i < 32; i += 2) unpack(pack(h[i], h[i + 1]), h[i], h[i + 1]);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const float within = gemm::not_above(of.clamp_max, gemm::not_below(of.clamp_min, up[i]));
        const float steep = gemm::not_below(gemm::kLeast, gemm::not_above(of.clamp_max, h[i]) * p.slope);
        h[i] = p.swiglu ? (within + 1.f) * (gemm::gated(steep, steep) / p.slope) : h[i] * up[i];
      }
      if (aligned) {
        gemm::store_aligned<true>(of, boxes, h, 0, row, first, at);
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          gemm::Sums v;
#pragma unroll
          for (int i = 0; i < 16; ++i) v[i] = h[16 * half + i];
          gemm::store(of, v, 0, row + boxes.lane / 4, first + 32 * half, boxes.lane);
        }
      }
    }
    __syncwarp();
  }

  static __device__ __forceinline__ void consume(const Rows& p, Shared& s, Warpgroup w) {
    const gemm::Params& product = p.of.product;
    const int lane = w.lane(), warp = w.warp(), steps = uniform(product.grid.steps);
    const Boxes boxes = {shared_address(s.boxes[w.index * 4 + warp]), lane};
    Consumer<Pipe> pipe(s.pipe, lane, product.grid.pairs);
    for (Scheduler<kOut> tile(p); tile.next();) {
      if (tile.row + 64 * w.index >= tile.end) {
        pass_stages(pipe, steps);
        continue;
      }
      Fragment<kColumns> c;
      multiply_stages(pipe, c, 64 * w.index, 0, steps);
      finish_stages(pipe, c, 0, steps);
      const OfGroup of = group_of(p.of, tile.expert, tile.end);
      const int row = tile.row + w.index * 64 + warp * 16;
      if (row >= tile.end) continue;
      if constexpr (kGated)
        finish_gated(p, of, of.bias, boxes, c.v, row, tile.n);
      else if (of.features & gemm::kAligned && tile.n + kColumns <= of.n)
        gemm::finish_aligned<true>(of, boxes, c.v, 0, row, tile.n);
      else
        gemm::finish(of, c.v, 0, row + lane / 4, tile.n, lane);
    }
  }

  static __device__ __forceinline__ void run(const Rows& p) {
    let_next_launch_begin();
    auto& s = shared_memory<Shared>();
    if (threadIdx.x == 32 && p.of.product.grid.steps > 0) ask_for(p.of.product.a), ask_for(p.of.product.b);
    Warps::run<true>(
        Warps::kConsumers, [&] { s.pipe.init(1, Warps::arrivals(Warps::kConsumers, 1 << p.of.product.grid.pairs)); },
        [&](int thread) {
          wait_for_launch_before();
          if (thread == 0) produce(p, s);
        },
        [&](Warpgroup w) {
          wait_for_launch_before();
          consume(p, s, w);
        });
  }
};
constexpr size_t kShared = sizeof(Kernel<0, false>::Shared);
static_assert(kShared >= sizeof(Kernel<1, false>::Shared), "a launch of any form has the shared memory of the first");

}  // namespace tilekiln::cuda::moe

using namespace tilekiln::cuda;

extern "C" __constant__ gemm::Build gemm_build = {moe::kTileRows,
                                                  moe::kForms[0].columns,
                                                  moe::kDepth,
                                                  moe::Warps::kThreads,
                                                  int(moe::kShared),
                                                  0,
                                                  LINES_B,
                                                  std::is_same_v<BuildHalf, fp16>,
                                                  0,
                                                  1,
                                                  0};
#define PRODUCT(name, form, gated)                                                                                \
  extern "C" __global__ void __launch_bounds__(moe::Warps::kThreads, 1) name(const __grid_constant__ moe::Rows p) { \
    moe::Kernel<form, gated>::run(p);                                                                             \
  }
PRODUCT(moe_gated_256, 0, true)
PRODUCT(moe_gated_128, 1, true)
PRODUCT(moe_rows_256, 0, false)
PRODUCT(moe_rows_128, 1, false)

extern "C" __global__ void __launch_bounds__(moe::kListThreads) moe_lists(const __grid_constant__ moe::Lists p) {
  auto& s = shared_memory<moe::ListMemory>();
  let_next_launch_begin();
  wait_for_launch_before();
  if (p.counts == nullptr)
    moe::make_lists(p, s.counts, s.words);
  else
    moe::make_lists(p, p.counts, s.words);
}
extern "C" __global__ void __launch_bounds__(moe::kSumThreads) moe_gather(const __grid_constant__ moe::Gather p) {
  let_next_launch_begin();
  wait_for_launch_before();
  const int tiles = __ldcg(p.tile_count), rows = tiles > 0 ? __ldcg(&p.tiles[tiles - 1].end) : 0;
  moe::gather_rows(p, rows, blockIdx.x, gridDim.x);
}
extern "C" __global__ void __launch_bounds__(moe::kSumThreads) moe_sums(const __grid_constant__ moe::Sums p) {
  __shared__ int rows[moe::kSumThreads];
  __shared__ float factors[moe::kSumThreads];
  let_next_launch_begin();
  wait_for_launch_before();
  moe::add_up(p, rows, factors);
}
