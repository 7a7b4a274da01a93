// SPDX-License-Identifier: MIT
// Convolutions on Hopper: products of boxes of pixels, which TMA copies from where a tap meets them, by filters.
//
// A box has a power of two of pixels along each dimension and across images, strides of the convolution are those of
// the map, and padding is what lies outside of the array: no image column is laid out. Roles, pipeline and stream-K are
// those of GEMM (gemm.cu). Planes of pixels that filters of one pixel meet are read as they lie. What TMA cannot follow
// is packed before (pack.h); few channels a group are summed without tensor cores (direct.h).
//
// -D: LOADER_REGISTERS, REGISTERS; TILEKILN_FP16.
#include "kernels/backends/cuda/tile/cluster_sum.h"
#include "kernels/backends/cuda/tile/mainloop.h"
#include "kernels/backends/cuda/tile/roles.h"
#include "kernels/backends/cuda/tile/scheduler.h"
#include "kernels/conv/conv_fwd/cuda/direct.h"
#include "kernels/conv/conv_fwd/cuda/epilogue.h"
#include "kernels/conv/conv_fwd/cuda/pack.h"

namespace tilekiln::cuda::conv {

using Warps = Roles<2, LOADER_REGISTERS, REGISTERS>;

// A step along k: a tap and a chunk of its channels.
struct Tap {
  int at[3], chunk, number;
  __device__ __forceinline__ Tap(const Params& p, int step) : number(step / p.chunks) {
    chunk = step - number * p.chunks;
    int rest = number;
#pragma unroll
    for (int d = 0; d < 3; ++d) at[d] = rest % p.filter[d], rest /= p.filter[d];
  }
  __device__ __forceinline__ void advance(const Params& p) {
    if (++chunk < p.chunks) return;
    chunk = 0, ++number;
    if (++at[0] < p.filter[0]) return;
    at[0] = 0;
    if (++at[1] < p.filter[1]) return;
    at[1] = 0, ++at[2];
  }
};

template <int kForm> struct Kernel {
  static constexpr bool kTurned = kForms[kForm].across, kSplits = kForms[kForm].splits > 1;
  static constexpr bool kPlanes = kForms[kForm].planes;
  static constexpr int kColumns = kForms[kForm].columns;
  struct Stage {
    SharedTile<BuildElement, kTileRows, kDepth, Major::K> a;
    SharedTile<BuildElement, kColumns, kDepth, kPlanes ? Major::MN : Major::K> b;
  };
  using Pipe = Pipeline<Stage, kForms[kForm].stages>;
  using Scheduler = TileScheduler<false, kSplits>;
  struct Shared {
    Pipe pipe;
    unsigned arrived[Warps::kConsumers];
    Signal multiplied[Warps::kConsumers];                  // by each of those that take turns, its tile
    StagedRows rows[kTurned ? Warps::kConsumers * 4 : 1];  // of a warp
  };

  // A tile: its pixels, and its outputs of a group.
  struct Tile {
    std::conditional_t<kPlanes, Strips, Corner> corner;
    int output, group;
    __device__ __forceinline__ Tile(const Params& p, const TileCoord& of)
        : output(kTurned ? of.m * kTileRows : of.n * kColumns), group(of.batch) {
      corner = {p, kTurned ? of.n : of.m};
    }
  };

  // Tiles of few outputs have rows for one consumer: the two have whole tiles in turn, or the second one has none.
  static __device__ __forceinline__ bool few(const Params& p) { return kTurned && p.filters == 64; }
  static __device__ __forceinline__ bool takes_turns(const Params& p) {
    return few(p) && p.grid.splits <= 1 && p.grid.shared == 0;
  }

  static __device__ __forceinline__ void produce(const Params& p, Shared& s) {
    Scheduler scheduler(p.grid);
    Producer<Pipe> pipe(s.pipe);
    for (WorkTile work; scheduler.next(work);) {
      const Tile tile(p, scheduler.coord(work));
      const int channel = p.groups_apart ? 0 : tile.group * p.channels;
      const auto from = tile.corner.origin(p);
      Tap tap(p, work.first);
      for (int step = work.first; step < work.last; ++step, pipe.advance(), tap.advance(p)) {
        Stage& stage = pipe.acquire();
        pipe.expect((kTileRows + p.filters) * 128);
        const uint32_t pixels = kTurned ? stage.b.address() : stage.a.address();
        const uint32_t filters = kTurned ? stage.a.address() : stage.b.address();
        if constexpr (kPlanes) {
#pragma unroll
          for (int i = 0; i < kColumns / kPlane; ++i)
            tensor_load(pixels + i * stage.b.kPanelBytes, p.x, pipe.full(), from.at[i], channel + tap.chunk * kDepth,
                        from.image[i], 0, 0);
        } else {
          tensor_load(pixels, p.x, pipe.full(), channel + tap.chunk * kDepth, from.at[0] + tap.at[0] * p.tap[0],
                      from.at[1] + tap.at[1] * p.tap[1],
                      p.groups_apart ? tile.group : from.at[2] + tap.at[2] * p.tap[2], tile.corner.at[3]);
        }
        tensor_load(filters, p.w, pipe.full(), tap.chunk * kDepth, tile.output, tap.number, tile.group, 0);
      }
    }
  }

  static __device__ __forceinline__ void consume(const Params& p, Shared& s, Warpgroup w) {
    const int lane = w.lane(), warp = w.warp();
    Scheduler scheduler(p.grid);
    Consumer<Pipe> pipe(s.pipe, lane);
    const bool turns_of_tiles = takes_turns(p);
    const int line = turns_of_tiles ? 0 : 64 * w.index;
    int number = 0;
    for (WorkTile work; scheduler.next(work);) {
      const int first = uniform(work.first), last = uniform(work.last);
      Fragment<kColumns> c;
      if (turns_of_tiles) {
        const int tile = number++;
        if ((tile & 1) != w.index) {
          pipe.at.skip(last - first);
          continue;
        }
        // A full stage is told from that of a round before while no more than a round may have passed.
        if (tile > 0) s.multiplied[1 - w.index].wait((tile - 1) / 2);
      }
      multiply_stages(pipe, c, line, first, last);
      const Tile tile(p, scheduler.coord(work));
      prefetch_bias(p.of, tile.group, tile.output, kTurned ? kTileRows : kColumns, lane);
      finish_stages(pipe, c, first, last);
      if (turns_of_tiles && w.thread == 0) s.multiplied[w.index].raise();
      int turn = 0, turns = kColumns / 32;  // of 32 columns, that this CTA finishes
      if (scheduler.splits()) {
        const int splits = p.grid.splits, rank = blockIdx.x % splits;
        add_over_cluster(c.v, s.pipe.stage, splits, rank, w.index, w.thread, true);
        turn = turns / splits * rank, turns = turn + turns / splits;
      } else if (last - first < p.grid.steps &&
                 !fix_up(scheduler, work, c.v, w.index, Warps::kConsumers, w.thread, true, s.arrived[w.index])) {
        continue;
      }
      const int row = line + warp * 16 + lane / 4;
      if constexpr (kTurned)
        finish_across(p.of, tile.corner, c.v, s.rows[w.index * 4 + warp], tile.group, tile.output + row, lane, turn,
                      turns);
      else
        finish_down(p.of, tile.corner, c.v, tile.group, tile.output, row, lane, turn, turns);
    }
  }

  static __device__ __forceinline__ void run(const Params& p) {
    let_next_launch_begin();
    auto& s = shared_memory<Shared>();
    const int consumers = few(p) && !takes_turns(p) ? 1 : 2;
    if (threadIdx.x == 32) ask_for(p.x), ask_for(p.w);
    const auto attend = [&] {
      if (kSplits && p.grid.splits > 1) attend_cluster_sum();
    };
    Warps::run<kSplits>(
        consumers,
        [&] {
          s.pipe.init(1, Warps::arrivals(few(p) ? 1 : 2, 1));
          for (Signal& one : s.multiplied) one.init();
        },
        [&](int thread) {
          wait_for_launch_before();
          if (thread == 0) produce(p, s);
          attend();
        },
        [&](Warpgroup w) {
          wait_for_launch_before();
          consume(p, s, w);
        },
        attend);
  }
};
constexpr int kSharedBytes = sizeof(Kernel<3>::Shared);
static_assert(kSharedBytes <= 232448, "a CTA of Hopper has 227 KB of shared memory");
static_assert(sizeof(Kernel<0>::Shared) <= kSharedBytes && sizeof(Kernel<1>::Shared) <= kSharedBytes &&
                  sizeof(Kernel<2>::Shared) <= kSharedBytes && sizeof(Kernel<4>::Shared) <= kSharedBytes,
              "all forms are launched with as much shared memory as form 3 has");

}  // namespace tilekiln::cuda::conv

using namespace tilekiln::cuda;

extern "C" __constant__ conv::Build conv_build = {conv::Warps::kThreads, conv::kSharedBytes,
                                                  std::is_same_v<BuildHalf, fp16>};
#define PRODUCT(name, form)                                                                                            \
  extern "C" __global__ void __launch_bounds__(conv::Warps::kThreads, 1)                                               \
      name(const __grid_constant__ conv::Params p) {                                                                   \
    conv::Kernel<form>::run(p);                                                                                        \
  }
PRODUCT(conv_256, 0)
PRODUCT(conv_128, 1)
PRODUCT(conv_64, 2)
PRODUCT(conv_across, 3)
PRODUCT(conv_planes, 4)

extern "C" __global__ void __launch_bounds__(conv::kPackThreads) conv_pack(const __grid_constant__ conv::Packed p) {
  __shared__ uint16_t tile[conv::kPackChannels][conv::kPackPixels + 2];
  begin_between_launches();
  conv::pack(p, tile);
}
extern "C" __global__ void __launch_bounds__(conv::kPackThreads) conv_pack_few(const __grid_constant__ conv::Packed p) {
  begin_between_launches();
  conv::pack_few(p);
}
#define DIRECT(name, call)                                                                                            \
  extern "C" __global__ void __launch_bounds__(conv::kDirectThreads) name(const __grid_constant__ conv::Direct p) { \
    begin_between_launches();                                                                                         \
    conv::call(p, i64(blockIdx.x) * conv::kDirectThreads + threadIdx.x);                                              \
  }
using tilekiln::matrix::i64;
DIRECT(conv_direct, direct)
#define DEPTHWISE(taps, step)                                                                                         \
  extern "C" __global__ void __launch_bounds__(conv::kDirectThreads)                                                  \
      conv_depthwise_##taps##_##step(const __grid_constant__ conv::Direct p) {                                        \
    begin_between_launches();                                                                                         \
    conv::depthwise<taps, step, false>(p, i64(blockIdx.x) * conv::kDirectThreads + threadIdx.x);                      \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(conv::kDirectThreads)                                                  \
      conv_pairs_##taps##_##step(const __grid_constant__ conv::Direct p) {                                            \
    begin_between_launches();                                                                                         \
    conv::depthwise<taps, step, true>(p, i64(blockIdx.x) * conv::kDirectThreads + threadIdx.x);                       \
  }
DEPTHWISE(3, 1)
DEPTHWISE(3, 2)
DEPTHWISE(7, 1)
DEPTHWISE(7, 2)
