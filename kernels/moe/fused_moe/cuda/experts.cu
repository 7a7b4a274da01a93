// SPDX-License-Identifier: MIT
// A mixture of experts on Hopper, in launches between which the host does not wait: the rows of each expert (lists.h),
//
//   h = act(x[token of row] gate^T) * (x[token of row] up^T)     of gathered rows, gate and up in one tile
//   s = h down^T                                                  fp32, a row each
//   out[token] = sum of weight * s[row]                           in the order of experts: no atomics, the same bits
//
// Roles, pipeline and stores are those of grouped products. Tiles are of 128 rows of one expert; a warpgroup without
// rows lets stages go by. Rows are gathered beforehand, for TMA, and two CTAs with the same rows multicast half of them
// each: copied one by one in the load (cp.async), behind which stages land late, many took 1.12 of the time (8,192 rows
// of Mixtral, H200), and few read weights at .74 of memory's speed.
//
// Of e4m3, rows and h are e4m3, too, 128 numbers along k by a factor, and weights have one a block of 128 x 128: the
// sums of a stage, 128 of k, are multiplied by both on their way, and a tile's h becomes e4m3 before it is stored.
//
// -D: LINES_B (1: weights are contiguous along their rows, 0: along k), LOADER_REGISTERS, REGISTERS; TILEKILN_FP16;
// TILEKILN_FP8: of e4m3, with x and out of fp16 or bf16.
#include "kernels/backends/cuda/tile/mainloop.h"
#include "kernels/backends/cuda/tile/roles.h"
#include "kernels/gemm/gemm/cuda/aligned.h"
#include "kernels/gemm/gemm/cuda/block_factors.h"
#include "kernels/gemm/grouped_gemm/cuda/of_group.h"
#include "kernels/moe/fused_moe/cuda/steps.h"

namespace tilekiln::cuda::moe {

using gemm::kTileRows;
using gemm::OfGroup;
constexpr bool kBytes = BuildElement::kBytes == 1;
constexpr int kDepth = 128 / BuildElement::kBytes, kBlock = 128;
using Warps = Roles<2, LOADER_REGISTERS, REGISTERS>;

// Workers, CTAs or clusters of two with neighbouring columns, walk the tiles of rows that `lists` made; inside an
// expert rows first: its columns of b stay in L2.
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

// kNarrows: out is e4m3 with factors.
template <int kFormIndex, bool kGated, bool kNarrows = false> struct Kernel {
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

  static __device__ __forceinline__ void add_bias(const float* bias, int n, int column, float (&v)[32]) {
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      const float2 two = gemm::load_numbers(bias, column + 8 * d, n);
      gemm::each_column(v, d, [&](int, float& one, float& other) { one += two.x, other += two.y; });
    }
  }
  // Columns 64 at and on: h = act(gate + its bias), rounded unless h becomes e4m3, times up + its bias. c has the sums
  // of gate, then those of up; or of the one matrix there is.
  static __device__ __forceinline__ void join(const Rows& p, const OfGroup& of, const float (&c)[kColumns / 2], int at,
                                              int column, float (&h)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) h[i] = c[32 * at + i];
    if (of.bias != nullptr) add_bias(of.bias, of.n, column, h);
    gemm::activate(of, h);
    if constexpr (kGated) {
      float up[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) up[i] = c[kOut / 2 + 32 * at + i];
      if (of.bias != nullptr) add_bias(of.bias + of.n, of.n, column, up);
      if constexpr (!kNarrows) {
#pragma unroll
        for (int i = 0; i < 32; i += 2) unpack(pack(h[i], h[i + 1]), h[i], h[i + 1]);
      }
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const float within = gemm::not_above(of.clamp_max, gemm::not_below(of.clamp_min, up[i]));
        const float steep = gemm::not_below(gemm::kLeast, gemm::not_above(of.clamp_max, h[i]) * p.slope);
        h[i] = p.swiglu ? (within + 1.f) * (gemm::gated(steep, steep) / p.slope) : h[i] * up[i];
      }
    }
  }
  // Rows of e4m3 from `row` on, blocks of 128 columns from `column` on, each row by a factor.
  static __device__ __forceinline__ void finish_narrow(const Rows& p, const OfGroup& of, float (&c)[kColumns / 2],
                                                       int row, int column, int lane) {
    const int quad = lane & 3;
#pragma unroll
    for (int block = 0; block < kOut / kBlock; ++block, column += kBlock) {
      if (column >= of.n) break;
      float* const v = c + 64 * block;
      unsigned top[2] = {};  // the bits of the largest magnitudes: those of NaN are above infinity's
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float h[32];
        join(p, of, c, 2 * block + half, column + 64 * half + 2 * quad, h);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          v[32 * half + i] = h[i];
          top[i / 2 % 2] = max(top[i / 2 % 2], __float_as_uint(h[i]) & 0x7fffffffu);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        for (int i = 1; i < 4; i *= 2) top[h] = max(top[h], __shfl_xor_sync(~0u, top[h], i));
        const norm::Scale by = norm::scale_of(__uint_as_float(top[h]), true);
        const long long r = row + lane / 4 + 8 * h;
        const bool inside = r < of.m;
        if (inside && quad == 0) p.scale[r * (of.n / kBlock) + column / kBlock] = by.scale;
        char* const to = static_cast<char*>(of.out) + r * of.out_row + column + 8 * quad;
#pragma unroll
        for (int d = 0; d < 16; d += 8) {
          // Halves of a word: the low one is of eight columns, the high one of the eight that are 32 further.
          const auto word = [&](int i) {
            const float* const one = v + 4 * (d + i) + 2 * h;
            const float four[4] = {one[0], one[1], one[16], one[17]};
            return by.some ? norm::quantised(four, by.by, true) : 0u;
          };
          const uint4 of_eight = quad_transpose(lane, word(0), word(1), word(2), word(3));
          if (!inside) continue;
          *reinterpret_cast<uint2*>(to + 8 * d) = {__byte_perm(of_eight.x, of_eight.y, 0x5410),
                                                   __byte_perm(of_eight.z, of_eight.w, 0x5410)};
          *reinterpret_cast<uint2*>(to + 8 * d + 32) = {__byte_perm(of_eight.x, of_eight.y, 0x7632),
                                                        __byte_perm(of_eight.z, of_eight.w, 0x7632)};
        }
      }
    }
    __syncwarp();
  }

  static __device__ __forceinline__ void finish_gated(const Rows& p, const OfGroup& of, const Boxes& boxes,
                                                      const float (&c)[kOut], int row, int column) {
    const bool aligned = of.features & gemm::kAligned && column + kOut <= of.n;
#pragma unroll
    for (int at = 0; at < kOut / 64; ++at) {
      const int first = column + 64 * at;
      float h[32];
      join(p, of, c, at, first + (boxes.lane & 3) * 2, h);
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

  static __device__ __forceinline__ gemm::BlockFactors<kColumns / kBlock> factors(const Rows& p,
                                                                                  const Scheduler<kOut>& tile, int row,
                                                                                  int steps) {
    const gemm::Params& product = p.of.product;
    gemm::Factors of_b = product.of_b;
    of_b.data += tile.expert * p.factors_step;
    const int next = kGated ? product.n / kBlock : 1, last = (product.n - 1) / kBlock * (kGated ? 2 : 1) + kGated;
    const auto block = [&](int i) { return min(tile.n / kBlock + i * next, last); };
    return {product.of_a, row, tile.end - 1, of_b, block, 0, steps};
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
      const int row = tile.row + w.index * 64 + warp * 16;
      if constexpr (kBytes) {
        multiply_apart<kBlock>(pipe, c, 64 * w.index, 0, steps, factors(p, tile, row + lane / 4, steps));
      } else {
        multiply_stages(pipe, c, 64 * w.index, 0, steps);
        finish_stages(pipe, c, 0, steps);
      }
      const OfGroup of = group_of(p.of, tile.expert, tile.end);
      if (row >= tile.end) continue;
      if constexpr (kNarrows)
        finish_narrow(p, of, c.v, row, tile.n, lane);
      else if constexpr (kGated)
        finish_gated(p, of, boxes, c.v, row, tile.n);
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
                                                  moe::kBytes ? int(tilekiln::matrix::Dtype::fp8) : 0,
                                                  1,
                                                  moe::kBytes};
#define PRODUCT(name, ...)                                                                                        \
  extern "C" __global__ void __launch_bounds__(moe::Warps::kThreads, 1) name(const __grid_constant__ moe::Rows p) { \
    moe::Kernel<__VA_ARGS__>::run(p);                                                                             \
  }
PRODUCT(moe_gated_256, 0, true, moe::kBytes)
// Narrow tiles of gate and up, or, of e4m3, those of the one matrix there is.
PRODUCT(moe_other, moe::kBytes ? 0 : 1, !moe::kBytes, moe::kBytes)
PRODUCT(moe_rows_256, 0, false)
PRODUCT(moe_rows_128, 1, false)
