// Matrix products on Hopper: out = epilogue(a b) for 16-bit a and b, summed in fp32.
//
// A CTA is a loader and two warpgroups that compute a tile together, each half of its rows, with all sums in
// registers. CTAs are as many as processors and walk the tiles in one order, `group` rows of tiles at a time, so that what is in flight shares
// rows of a and columns of b in L2; where tiles are too few, or the last turn of them is, CTAs share their steps
// (share.h). Of large products two CTAs, a cluster, have tiles one below the other: each copies half of b's columns to both, a third less
// for L2 to send, whose power the clock gets (8192^3: 1,425 MHz for 1,395, H100). The loader runs ahead through a ring of stages of kSteps along k, also into the next tile while the warpgroups are in their epilogue (epilogue.h).
//
// Either operand may be contiguous along k or along its lines (rows of a, columns of b): four builds, of which only the
// descriptors of wgmma and the boxes of the tensor copies differ. What the copy engine cannot follow (odd strides, odd addresses) the loader's
// warps gather, element by element, to where a copy would have put it.
//
// -D: LINES_A, LINES_B (1: contiguous along its lines), LOADER_REGISTERS, REGISTERS; TILEKILN_FP16 for fp16.
#include "kernels/gemm/gemm/cuda/inside.h"
#include "kernels/gemm/gemm/cuda/share.h"
#include "wgmma.h"

namespace tilekiln::cuda::gemm {

constexpr int kSteps = 64, kThreads = 384;
constexpr int kPanel = 64 * 128;  // bytes of 64 rows of 128 bytes

template <int kForm> struct Shared {
  static constexpr int kRows = kTileRows, kColumns = kForms[kForm].columns, kStages = kForms[kForm].stages,
                       kBoxes = kForms[kForm].boxes;
  static constexpr bool kPairs = kForms[kForm].ctas == 2;
  static constexpr uint32_t kABytes = kRows * kSteps * 2, kBBytes = kColumns * kSteps * 2;
  uint8_t a[kStages][kABytes], b[kStages][kBBytes];
  uint8_t boxes[8][kBoxes][kBoxBytes];  // of a warp each
  uint64_t full[kStages], empty[kStages];
  unsigned said[2];  // of a warpgroup each
};
constexpr int kSharedBytes = sizeof(Shared<2>);
static_assert(kSharedBytes <= 232448, "a block of Hopper has 227 KB of shared memory");
static_assert(sizeof(Shared<0>) <= kSharedBytes && sizeof(Shared<1>) <= kSharedBytes &&
                  sizeof(Shared<3>) <= kSharedBytes,
              "all are launched with as much");

template <int kStages> struct Stage {
  int at = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++at == kStages) at = 0, phase ^= 1;
  }
  __device__ __forceinline__ int before() const { return at == 0 ? kStages - 1 : at - 1; }
};

struct Tile { int m, n, batch; };
template <class Shared> TILEKILN_DEVICE Tile tile_of(const Worker<Shared::kPairs>& worker, int number) {
  const Row& p = worker.p;
  const int each = p.tiles_m * p.tiles_n, batch = number / each, at = number - batch * each;
  const int per_group = p.group * p.tiles_n, group = at / per_group, rest = at - group * per_group;
  const int rows = min(p.group, p.tiles_m - group * p.group), n = rest / rows;
  const int m = (group * p.group + rest - n * rows) * worker.ctas() + worker.rank();
  return {m * Shared::kRows, n * Shared::kColumns, batch};
}

// A stage of an operand by the copy engine: `lines` rows of a or columns of b from `line` on, kSteps along k from `step` on.
// Contiguous along k a line is 128 bytes; else panels of 64 lines, whose rows are steps. kMany: to the CTAs of a cluster whose bits
// are set.
template <bool kLines, bool kMany>
TILEKILN_DEVICE void copy_stage(const TensorMap& map, uint32_t to, uint64_t& full, int line, int step, int batch,
                                int lines, uint16_t ctas = 1) {
  const auto copy = [&](uint32_t at, int c0, int c1) {
    if constexpr (kMany)
      tensor_load_to_all(at, map, full, c0, c1, batch, 0, 0, ctas);
    else
      tensor_load(at, map, full, c0, c1, batch, 0, 0);
  };
  if constexpr (!kLines) {
    copy(to, step, line);
  } else {
#pragma unroll 4
    for (int i = 0; i < lines / 64; ++i) copy(to + i * kPanel, line + 64 * i, step);
  }
}

// The same by 128 threads, element by element, with zeros where the copy engine has them; `count` lines and `steps` there are.
template <bool kLines, int lines>
TILEKILN_DEVICE void gather_stage(const Gathered& from, uint32_t to, int count, int steps, int line, int step,
                                  int batch, int thread) {
  const uint16_t* const data = from.data + batch * from.batch;
#pragma unroll 1
  for (int piece = thread; piece < lines * 8; piece += 128) {
    const int row = piece / 8, chunk = piece % 8;  // 16 bytes of a row of 128
    uint32_t words[4];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int l = line + (kLines ? row / 64 * 64 + chunk * 8 + e : row);
      const int s = step + (kLines ? row % 64 : chunk * 8 + e);
      const uint32_t bits = load_if(l < count && s < steps, data + l * from.line + s * from.step);
      words[e / 2] = e % 2 == 0 ? bits : words[e / 2] | bits << 16;
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + row * 128 + ((chunk ^ (row & 7)) * 16)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

template <bool kLinesA, bool kLinesB, class Shared> TILEKILN_DEVICE void load(const Row& p, Shared& s, int thread) {
  const bool gather_a = p.features & kGatherA, gather_b = p.features & kGatherB;
  const uint32_t bytes = (gather_a ? 0 : p.rows_a * 128) + (gather_b ? 0 : Shared::kBBytes);
  Stage<Shared::kStages> stage;
  Work<Shared::kPairs> work(p);
  const uint16_t ctas = uint16_t(2 * work.worker.ctas() - 1);  // all of them, by bits
  for (Piece piece; work.next(piece);) {
    const Tile tile = tile_of<Shared>(work.worker, piece.tile);
    const int of_a = p.a_batches ? tile.batch : 0, of_b = p.b_batches ? tile.batch : 0;
    for (int k = piece.first; k < piece.last; ++k, stage.next()) {
      const int step = k * kSteps;
      wait(s.empty[stage.at], stage.phase ^ 1);
      uint64_t& full = s.full[stage.at];
      const uint32_t to_a = shared_address(s.a[stage.at]), to_b = shared_address(s.b[stage.at]);
      if (thread == 0) {
        arrive_expecting(full, bytes);
        if (!gather_a) copy_stage<kLinesA, false>(p.a, to_a, full, tile.m, step, of_a, p.rows_a);
        if (!gather_b) {
          if constexpr (Shared::kPairs) {  // each CTA of a pair has one half
#pragma unroll 1
            for (int half = work.worker.rank(); half < 2; half += work.worker.ctas())
              copy_stage<kLinesB, true>(p.b, to_b + half * (Shared::kBBytes / 2), full,
                                        tile.n + half * (Shared::kColumns / 2), step, of_b, Shared::kColumns / 2, ctas);
          } else {
            copy_stage<kLinesB, false>(p.b, to_b, full, tile.n, step, of_b, Shared::kColumns);
          }
        }
      }
      if (gather_a || gather_b) {
        if (gather_a) gather_stage<kLinesA, Shared::kRows>(p.from_a, to_a, p.m, p.k, tile.m, step, of_a, thread);
        if (gather_b) gather_stage<kLinesB, Shared::kColumns>(p.from_b, to_b, p.n, p.k, tile.n, step, of_b, thread);
        async_shared_fence();
        warp_arrive(full, thread & 31);
      }
    }
  }
}

// Of an operand's stage at `address`; and from one of its 16 steps to the next, in 16 bytes.
template <bool kLines> TILEKILN_DEVICE uint64_t descriptor(uint32_t address) {
  return tile_descriptor(address, kLines ? kPanel : 16, 1024);
}
template <bool kLines> constexpr int kStepOf = (kLines ? 2048 : 32) / 16;

template <bool kLinesA, bool kLinesB, class Shared>
TILEKILN_DEVICE void compute(const Row& p, Shared& s, int w, int thread) {
  constexpr int kColumns = Shared::kColumns;
  const int lane = thread & 31;
  Stage<Shared::kStages> stage;
  Work<Shared::kPairs> work(p);
  const Worker<Shared::kPairs>& worker = work.worker;
  const auto release = [&](bool condition) {
    if constexpr (Shared::kPairs) {
      const int cta = fresh_lane();
      __syncwarp();
      cluster_arrive_if(condition && cta <= worker.shift(),
                        cluster_address(shared_address(&s.empty[stage.before()]), cta & worker.shift()));
    } else {
      warp_arrive_if(condition, s.empty[stage.before()], lane);
    }
  };
  for (Piece piece; work.next(piece);) {
    const int first = uniform(piece.first), last = uniform(piece.last);
    float sum[kColumns / 2];
#pragma unroll 1
    for (int k = first; k < last; ++k) {
      wait(s.full[stage.at], stage.phase);
      const uint32_t a = shared_address(s.a[stage.at]) + w * kPanel, b = shared_address(s.b[stage.at]);
      product_fence();
      multiply_shared<kColumns, kLinesA, kLinesB, kSteps / 16, kStepOf<kLinesA>, 0, kStepOf<kLinesB>, 0>(
          sum, descriptor<kLinesA>(a), descriptor<kLinesB>(b), k > first);
      product_commit();
      product_wait<1>();
      release(k > first);
      stage.next();
    }
    // The divisions behind a tile's place, and the way of its bias to L1, pass under the last products.
    Tile tile = tile_of<Shared>(worker, piece.tile);
    asm volatile("" : "+r"(tile.m), "+r"(tile.n), "+r"(tile.batch));
    ask_for_bias(p, tile.n, kColumns, lane);
    product_wait<0>();
    pin(sum);
    if (first == last) {  // by a branch: selects would cost every tile 128 instructions
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) asm volatile("mov.b32 %0, 0;" : "=f"(sum[i]));
    }
    release(last > first);
    const int row = tile.m + w * 64 + uniform(thread / 32) * 16;
    const bool mine = row < p.m;
    if (last - first < p.steps && !join(worker, piece, sum, w, 2, thread, mine, s.said[w])) continue;
    // A narrow tile is well served by the epilogue of any place: a second one would be 60 kB of code.
    if constexpr (kColumns > 64) {
      if (p.features & kAligned && tile.m + Shared::kRows <= p.m && tile.n + kColumns <= p.n) {
        const Boxes<Shared::kBoxes> boxes = {shared_address(s.boxes[w * 4 + uniform(thread / 32)]), lane};
        finish_inside(p, boxes, sum, tile.batch, row, tile.n);
        continue;
      }
    }
    if (mine) finish(p, sum, tile.batch, row + lane / 4, tile.n, lane);
  }
}

template <int kForm> TILEKILN_DEVICE void multiply(const Row& p) {
  extern __shared__ __align__(1024) char raw[];
  auto& s = *reinterpret_cast<Shared<kForm>*>(raw);
  const int warpgroup = uniform(threadIdx.x >> 7), thread = threadIdx.x & 127;
  const int teams = p.m > kTileRows / 2 ? 2 : 1;  // the second warpgroup has no rows of few
  const bool gathers = p.features & (kGatherA | kGatherB);
  constexpr bool kPairs = Shared<kForm>::kPairs;
  const int ctas = Worker<kPairs>{p}.ctas();
  if (threadIdx.x == 32 && p.steps > 0) {
    if (!(p.features & kGatherA)) ask_for(p.a);
    if (!(p.features & kGatherB)) ask_for(p.b);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < kForms[kForm].stages; ++i)
      barrier_init(s.full[i], gathers ? 5 : 1), barrier_init(s.empty[i], 4 * teams * ctas);
    barrier_init_done();
  }
  if constexpr (kPairs)
    cluster_arrive_relaxed(), cluster_wait();  // the other CTA's barriers are there, too
  else
    __syncthreads();
  if (warpgroup == 0) {
    fewer_registers<LOADER_REGISTERS>();
    if (thread == 0 || gathers) load<LINES_A, LINES_B>(p, s, thread);
  } else if (warpgroup <= teams) {
    more_registers<REGISTERS>();
    // Rows that no copy writes: to let the copy engine fill them with zeros each time took half as long again (16 rows, H100).
    if (!(p.features & kGatherA) && p.rows_a < teams * kTileRows / 2) {
      const int first = p.rows_a * 128 / 16, last = teams * kTileRows / 2 * 128 / 16;
      for (int i = 0; i < kForms[kForm].stages; ++i) {
        for (int j = first + int(threadIdx.x) - 128; j < last; j += teams * 128)
          reinterpret_cast<uint4*>(s.a[i])[j] = make_uint4(0, 0, 0, 0);
      }
      async_shared_fence();
      named_sync(3, teams * 128);
    }
    compute<LINES_A, LINES_B>(p, s, warpgroup - 1, thread);
  }
  if constexpr (kPairs) {  // none leaves while the other CTA still copies to it, or arrives at its barriers
    __syncwarp();
    cluster_arrive_relaxed(), cluster_wait();
  }
}

}  // namespace tilekiln::cuda::gemm

using namespace tilekiln::cuda;

extern "C" __constant__ gemm::Build gemm_build = {gemm::kTileRows,
                                                  gemm::kForms[0].columns,
                                                  gemm::kSteps,
                                                  gemm::kThreads,
                                                  gemm::kSharedBytes,
                                                  LINES_A,
                                                  LINES_B,
#ifdef TILEKILN_FP16
                                                  1
#else
                                                  0
#endif
};

#define GEMM(name, form)                                                                                               \
  extern "C" __global__ void __launch_bounds__(gemm::kThreads, 1) name(const __grid_constant__ gemm::Row p) { \
    gemm::multiply<form>(p);                                                                                           \
  }
GEMM(gemm_hopper, 0)
GEMM(gemm_hopper_192, 1)
GEMM(gemm_hopper_128, 2)
GEMM(gemm_hopper_64, 3)
