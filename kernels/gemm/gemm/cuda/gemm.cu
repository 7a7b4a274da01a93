// Matrix products on Hopper: out = epilogue(a b) for 16-bit a and b, summed in fp32.
//
// A CTA is a loader and two warpgroups that compute a tile of kRows x kColumns together, each half of its rows, with all sums in
// registers. CTAs are as many as processors and walk the tiles in one order, `group` rows of tiles at a time, so that what is in flight shares
// rows of a and columns of b in L2. The loader runs ahead through a ring of stages of kSteps along k, also into the next
// tile while the warpgroups are in their epilogue (epilogue.h).
//
// Either operand may be contiguous along k or along its lines (rows of a, columns of b): four builds, of which only the
// descriptors of wgmma and the boxes of the tensor copies differ. What the copy engine cannot follow (odd strides, odd addresses) the loader's
// warps gather, element by element, to where a copy would have put it.
//
// -D: LINES_A, LINES_B (1: contiguous along its lines), COLUMNS, STAGES, LOADER_REGISTERS, REGISTERS; TILEKILN_FP16 for fp16.
#include "kernels/gemm/gemm/cuda/epilogue.h"
#include "wgmma.h"

namespace tilekiln::cuda::gemm {

constexpr int kRows = 128, kColumns = COLUMNS, kSteps = 64, kStages = STAGES, kThreads = 384;
constexpr int kPanel = 64 * 128;  // bytes of 64 rows of 128 bytes
constexpr uint32_t kABytes = kRows * kSteps * 2, kBBytes = kColumns * kSteps * 2;

struct Shared {
  uint8_t a[kStages][kABytes], b[kStages][kBBytes];
  uint64_t full[kStages], empty[kStages];
};
static_assert(sizeof(Shared) <= 232448, "a block of Hopper has 227 KB of shared memory");

struct Stage {
  int at = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++at == kStages) at = 0, phase ^= 1;
  }
};
TILEKILN_DEVICE int before(int stage) { return stage == 0 ? kStages - 1 : stage - 1; }

struct Tile { int m, n, batch; };
TILEKILN_DEVICE Tile tile_of(const Row& p, int number) {
  const int each = p.tiles_m * p.tiles_n, batch = number / each, at = number - batch * each;
  const int per_group = p.group * p.tiles_n, group = at / per_group, rest = at - group * per_group;
  const int rows = min(p.group, p.tiles_m - group * p.group), n = rest / rows;
  return {(group * p.group + rest - n * rows) * kRows, n * kColumns, batch};
}

// A stage of an operand by the copy engine: `lines` rows of a or columns of b from `line` on, kSteps along k from `step` on.
// Contiguous along k a line is 128 bytes; else panels of 64 lines, whose rows are steps.
template <bool kLines, int lines> TILEKILN_DEVICE void copy_stage(const TensorMap& map, uint32_t to, uint64_t& full,
                                                                  int line, int step, int batch) {
  if constexpr (!kLines) {
    tensor_load(to, map, full, step, line, batch, 0, 0);
  } else {
#pragma unroll
    for (int i = 0; i < lines / 64; ++i) tensor_load(to + i * kPanel, map, full, line + 64 * i, step, batch, 0, 0);
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

template <bool kLinesA, bool kLinesB> TILEKILN_DEVICE void load(const Row& p, Shared& s, int thread) {
  const bool gather_a = p.features & kGatherA, gather_b = p.features & kGatherB;
  const uint32_t bytes = (gather_a ? 0 : kABytes) + (gather_b ? 0 : kBBytes);
  Stage stage;
  for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
    const Tile tile = tile_of(p, number);
    const int of_a = p.a_batches ? tile.batch : 0, of_b = p.b_batches ? tile.batch : 0;
    for (int step = 0; step < p.k; step += kSteps, stage.next()) {
      wait(s.empty[stage.at], stage.phase ^ 1);
      uint64_t& full = s.full[stage.at];
      const uint32_t to_a = shared_address(s.a[stage.at]), to_b = shared_address(s.b[stage.at]);
      if (thread == 0) {
        arrive_expecting(full, bytes);
        if (!gather_a) copy_stage<kLinesA, kRows>(p.a, to_a, full, tile.m, step, of_a);
        if (!gather_b) copy_stage<kLinesB, kColumns>(p.b, to_b, full, tile.n, step, of_b);
      }
      if (gather_a || gather_b) {
        if (gather_a) gather_stage<kLinesA, kRows>(p.from_a, to_a, p.m, p.k, tile.m, step, of_a, thread);
        if (gather_b) gather_stage<kLinesB, kColumns>(p.from_b, to_b, p.n, p.k, tile.n, step, of_b, thread);
        async_shared_fence();
        warp_arrive(full, thread & 31);
      }
    }
  }
}

template <bool kLinesA, bool kLinesB> TILEKILN_DEVICE void compute(const Row& p, Shared& s, int w, int thread) {
  const int lane = thread & 31;
  const int stages = (p.k + kSteps - 1) / kSteps;
  Stage stage;
  for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
    float sum[kColumns / 2];
    if (stages == 0) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) sum[i] = 0;
    }
    for (int k = 0; k < stages; ++k) {
      wait(s.full[stage.at], stage.phase);
      const uint32_t a = shared_address(s.a[stage.at]) + w * kPanel, b = shared_address(s.b[stage.at]);
      product_fence();
#pragma unroll
      for (int i = 0; i < kSteps / 16; ++i) {
        const uint64_t of_a =
            kLinesA ? tile_descriptor(a + i * 2048, kPanel, 1024) : tile_descriptor(a + i * 32, 16, 1024);
        const uint64_t of_b =
            kLinesB ? tile_descriptor(b + i * 2048, kPanel, 1024) : tile_descriptor(b + i * 32, 16, 1024);
        Product<kColumns, kLinesA, kLinesB>::shared(sum, of_a, of_b, (k | i) > 0);
      }
      product_commit();
      product_wait<1>();
      warp_arrive_if(k > 0, s.empty[before(stage.at)], lane);
      stage.next();
    }
    product_wait<0>();
    pin(sum);
    warp_arrive_if(stages > 0, s.empty[before(stage.at)], lane);
    const Tile tile = tile_of(p, number);
    const int row = tile.m + w * 64 + thread / 32 * 16 + lane / 4;
    const bool inside = p.features & kAligned && tile.m + kRows <= p.m && tile.n + kColumns <= p.n;
    finish(p, sum, inside, tile.batch, row, tile.n, lane);
  }
}

template <bool kLinesA, bool kLinesB> TILEKILN_DEVICE void multiply(const Row& p) {
  extern __shared__ __align__(1024) char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const int warpgroup = uniform(threadIdx.x >> 7), thread = threadIdx.x & 127;
  const bool gathers = p.features & (kGatherA | kGatherB);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(s.full[i], gathers ? 5 : 1), barrier_init(s.empty[i], 8);
    barrier_init_done();
  }
  __syncthreads();
  if (warpgroup == 0) {
    fewer_registers<LOADER_REGISTERS>();
    if (thread == 0 || gathers) load<kLinesA, kLinesB>(p, s, thread);
  } else {
    more_registers<REGISTERS>();
    compute<kLinesA, kLinesB>(p, s, warpgroup - 1, thread);
  }
}

}  // namespace tilekiln::cuda::gemm

using namespace tilekiln::cuda;

extern "C" __constant__ gemm::Build gemm_build = {gemm::kRows,
                                                  gemm::kColumns,
                                                  gemm::kSteps,
                                                  gemm::kThreads,
                                                  sizeof(gemm::Shared),
                                                  LINES_A,
                                                  LINES_B,
#ifdef TILEKILN_FP16
                                                  1
#else
                                                  0
#endif
};

extern "C" __global__ void __launch_bounds__(gemm::kThreads, 1) gemm_hopper(const __grid_constant__ gemm::Row p) {
  gemm::multiply<LINES_A, LINES_B>(p);
}
