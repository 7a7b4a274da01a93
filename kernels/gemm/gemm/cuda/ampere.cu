// SPDX-License-Identifier: MIT
// Matrix products by mma.sync and cp.async, for every GPU from sm_80 on: out = epilogue(a b) for 16-bit a and b, summed
// in fp32.
//
// A CTA is four warps that compute a tile of 128 x 128, a quarter each, with a ring of kStages tiles of kSteps along k
// that cp.async fills. The order of tiles, how they are shared (tile/scheduler.h) and the epilogue are those of the
// Hopper kernels. Either operand may be contiguous along k or along its lines (rows of a, columns of b): four builds,
// of which only the places in shared memory and the ldmatrix differ. What copies of 16 bytes cannot follow is gathered
// element by element.
//
// -D: LINES_A, LINES_B (1: contiguous along its lines), STAGES; TILEKILN_FP16 for fp16.
#include "kernels/backends/cuda/mma.h"
#include "kernels/backends/cuda/tile/places.h"
#include "kernels/backends/cuda/tile/scheduler.h"
#include "kernels/gemm/gemm/cuda/epilogue.h"

namespace tilekiln::cuda::gemm {

constexpr int kRows = 128, kColumns = 128, kSteps = 32, kStages = STAGES, kThreads = 128;
constexpr int kWarpRows = 64, kWarpColumns = 64;
constexpr uint32_t kBytes = 128 * kSteps * 2;  // of a stage of an operand

// The offset of 16 bytes in an operand's tile. Contiguous along k: 128 lines of 64 bytes; else kSteps steps of 256.
template <bool kLines> TILEKILN_DEVICE uint32_t place(int row, int piece) {
  return place_of_piece<kLines ? 16 : 4>(row, piece);
}

// A stage of an operand: 128 lines from `line`, kSteps steps from `step`; what is not there is zero. `first`: the
// element at both.
template <bool kLines> TILEKILN_DEVICE void load_stage(const Gathered& from, bool gather, uint32_t to, int lines,
                                                       int steps, int line, int step, const uint16_t* first) {
  // A thread has one column of pieces, of rows kStep apart.
  constexpr int kPieces = kLines ? 16 : 4, kStep = kThreads / kPieces, kCount = kBytes / 16 / kThreads;
  const int row0 = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
  const int64_t along = kLines ? from.step : from.line;  // from one row of the tile to the next
  const uint16_t* at = first + row0 * along + piece * 8;
  if (!gather && line + 128 <= lines && step + kSteps <= steps) {
#pragma unroll
    for (int i = 0; i < kCount; ++i, at += kStep * along)
      copy_async_bytes(to + place<kLines>(row0 + i * kStep, piece), at, 16);
    return;
  }
  const int64_t next = kLines ? from.line : from.step;  // from one element of a piece to the next
  at = first + row0 * along + piece * 8 * next;
#pragma unroll 1
  for (int i = 0; i < kCount; ++i, at += kStep * along) {
    const int row = row0 + i * kStep, l = line + (kLines ? 8 * piece : row), s = step + (kLines ? row : 8 * piece);
    const uint32_t place_of = to + place<kLines>(row, piece);
    const int left = kLines ? (s < steps ? lines - l : 0) : (l < lines ? steps - s : 0);
    if (!gather) {
      copy_async_bytes(place_of, left > 0 ? at : from.data, 2 * max(min(left, 8), 0));
      continue;
    }
    uint32_t words[4];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const uint32_t bits = load_if(e < left, at + e * next);
      words[e / 2] = e % 2 == 0 ? bits : words[e / 2] | bits << 16;
    }
    store_shared(place_of, make_uint4(words[0], words[1], words[2], words[3]));
  }
}

// 16 rows of a, from `row`, and 16 steps, from 16 i.
template <bool kLines> TILEKILN_DEVICE void load_a(uint32_t (&a)[4], uint32_t at, int row, int i, int lane) {
  if constexpr (kLines)
    load_matrices_transposed(a, at + place<true>(16 * i + (lane & 7) + (lane >> 4 << 3), row / 8 + (lane >> 3 & 1)));
  else
    load_matrices(a, at + place<false>(row + (lane & 15), 2 * i + (lane >> 4)));
}
// 16 columns of b and 16 steps: words 0 and 1 are of the first eight columns.
template <bool kLines> TILEKILN_DEVICE void load_b(uint32_t (&b)[4], uint32_t at, int column, int i, int lane) {
  if constexpr (kLines)
    load_matrices_transposed(b, at + place<true>(16 * i + (lane & 15), column / 8 + (lane >> 4)));
  else
    load_matrices(b, at + place<false>(column + (lane & 7) + (lane >> 4 << 3), 2 * i + (lane >> 3 & 1)));
}

TILEKILN_DEVICE float (&block(float* sums, int at))[4] { return *reinterpret_cast<float (*)[4]>(sums + 4 * at); }

template <bool kLinesA, bool kLinesB> TILEKILN_DEVICE void multiply(const Params& p) {
  extern __shared__ __align__(128) char raw[];
  const uint32_t ring = shared_address(raw);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int warp_row = warp / 2 * kWarpRows, warp_column = warp % 2 * kWarpColumns;
  const bool gather_a = p.features & kGatherA, gather_b = p.features & kGatherB;
  __shared__ unsigned arrived;
  TileScheduler<false> scheduler(p.grid);
  for (WorkTile work; scheduler.next(work);) {
    TileCoord tile = scheduler.coord(work);
    tile.m *= kRows, tile.n *= kColumns;
    const uint16_t* const a = p.from_a.data + (p.a_batches ? tile.batch : 0) * p.from_a.batch + tile.m * p.from_a.line;
    const uint16_t* const b = p.from_b.data + (p.b_batches ? tile.batch : 0) * p.from_b.batch + tile.n * p.from_b.line;
    const int stages = work.last - work.first;
    const auto load = [&](int k) {
      if (k < stages) {
        const uint32_t to = ring + k % kStages * 2 * kBytes;
        const int step = (work.first + k) * kSteps;
        load_stage<kLinesA>(p.from_a, gather_a, to, p.m, p.k, tile.m, step, a + step * p.from_a.step);
        load_stage<kLinesB>(p.from_b, gather_b, to + kBytes, p.n, p.k, tile.n, step, b + step * p.from_b.step);
      }
      copy_async_commit();
    };
    constexpr int kOfRows = kWarpColumns / 2;  // sums of 16 rows that a lane has
    float sum[kWarpRows / 16 * kOfRows] = {};
#pragma unroll
    for (int k = 0; k < kStages - 1; ++k) load(k);
    for (int k = 0; k < stages; ++k) {
      copy_async_wait<kStages - 2>();
      __syncthreads();  // stage k is there, and all have done with k - 1, whose place the next load takes
      load(k + kStages - 1);
      const uint32_t of_a = ring + k % kStages * 2 * kBytes, of_b = of_a + kBytes;
#pragma unroll
      for (int i = 0; i < kSteps / 16; ++i) {
        uint32_t rows[kWarpRows / 16][4];
#pragma unroll
        for (int m = 0; m < kWarpRows / 16; ++m) load_a<kLinesA>(rows[m], of_a, warp_row + 16 * m, i, lane);
#pragma unroll
        for (int n = 0; n < kWarpColumns / 16; ++n) {
          uint32_t columns[4];
          load_b<kLinesB>(columns, of_b, warp_column + 16 * n, i, lane);
#pragma unroll
          for (int m = 0; m < kWarpRows / 16; ++m) {
            multiply_add(block(sum + m * kOfRows, 2 * n), rows[m], columns[0], columns[1]);
            multiply_add(block(sum + m * kOfRows, 2 * n + 1), rows[m], columns[2], columns[3]);
          }
        }
      }
    }
    copy_async_wait<0>();
    __syncthreads();  // the next tile's stages take the places of these
    const bool mine = tile.m + warp_row < p.m;
    if (stages < p.grid.steps && !fix_up(scheduler, work, sum, 0, 1, threadIdx.x, mine, arrived)) continue;
    if (!mine) continue;
    in_turns<kOfRows>(sum, [&](float (&v)[kOfRows], int m) {
      finish(p, v, tile.batch, tile.m + warp_row + 16 * m + lane / 4, tile.n + warp_column, lane);
    });
  }
}

}  // namespace tilekiln::cuda::gemm

using namespace tilekiln::cuda;

extern "C" __constant__ gemm::Build gemm_build = {gemm::kRows,
                                                  gemm::kColumns,
                                                  gemm::kSteps,
                                                  gemm::kThreads,
                                                  gemm::kStages * 2 * gemm::kBytes,
                                                  LINES_A,
                                                  LINES_B,
#ifdef TILEKILN_FP16
                                                  1
#else
                                                  0
#endif
};

extern "C" __global__ void __launch_bounds__(gemm::kThreads) gemm_ampere(const __grid_constant__ gemm::Params p) {
  gemm::multiply<LINES_A, LINES_B>(p);
}
