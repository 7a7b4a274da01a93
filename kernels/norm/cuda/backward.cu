// SPDX-License-Identifier: MIT
// Derivatives of the norms. With z = (x - mean) inverse, g = dy gamma and means over a row:
//   dx = inverse (g - mean(g) - z mean(g z))      (rmsnorm2d: z = x inverse, no mean(g))
//   dgamma = sum of dy z over rows, dbeta = sum of dy
//
// A block is teams of threads that have a row each at a time, every thread the same columns of all of them: their sums
// over rows stay in registers until the last row, the teams' are added in shared memory, and the blocks' by `join`,
// when all have met or in a launch of its own, each in one order. Columns beyond those held add to the block's part in
// memory. The next rows are on their way to shared memory, each vector to the thread that asked for it.
// -D: HELD (vectors of 16-bit elements; twice as many of fp32), STAGES (rows of a team on their way at most), NORM (1
// layer, 2 rms); TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/rows.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::Backward;

constexpr bool kLayer = NORM == 1;
constexpr int kThreads = kBackwardThreads;
constexpr int kVectors = HELD * int(sizeof(Element)) / 2;  // of a row that a thread holds

struct Pair { float gz, g; };

TILEKILN_DEVICE Pair added(Pair a, Pair b) { return {a.gz + b.gz, a.g + b.g}; }

// Over a team, in one order. `shared`: a pair a warp, that the row before the last one has used.
TILEKILN_DEVICE Pair sum_of(Pair v, int team, int lanes, Pair* shared) {
  const auto in_warp = [&](int width) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
      if (i < width) v = added(v, {__shfl_xor_sync(~0u, v.gz, i), kLayer ? __shfl_xor_sync(~0u, v.g, i) : 0.f});
    }
  };
  in_warp(32);
  const int warps = lanes / 32;
  if (warps == 1) return v;
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = v;
  named_sync(1 + team, lanes);
  v = shared[team * warps + (threadIdx.x & (warps - 1))];  // a power of two
  in_warp(warps);
  return v;
}

using Sums = float[kVectors][kWide];  // of a thread's columns over its rows

// The sums of the teams of a block, added in turn, become its part. sums: (teams, step * kVectors), dgamma before
// dbeta.
TILEKILN_DEVICE void add_teams(const Sums& of_gamma, const Sums& of_beta, int teams, int team, int step, int mine,
                               int columns, float* sums, float* dgamma, float* dbeta) {
  constexpr int kSums = kThreads * kVectors * kWide;
  const int held = step * kVectors;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      const int at = team * held + mine + i * step + e;
      sums[at] = of_gamma[i][e];
      if (kLayer) sums[kSums + at] = of_beta[i][e];
    }
  }
  __syncthreads();
  for (int j = threadIdx.x; j < min(columns, held); j += kThreads) {
    float one = 0, other = 0;
    for (int t = 0; t < teams; ++t) {
      one += sums[t * held + j];
      if (kLayer) other += sums[kSums + t * held + j];
    }
    dgamma[j] = one;
    if (kLayer) dbeta[j] = other;
  }
}

// g and z of a vector, 0 where there is no column, and their share of a row's sums; d is dy.
TILEKILN_DEVICE void take_vector(uint4 of_dy, uint4 of_x, uint4 of_gamma, int bytes, float mean, float inverse,
                                 float (&d)[kWide], float (&g)[kWide], float (&z)[kWide], Pair& sum) {
  float w[kWide];
  widen(of_dy, d), widen(of_x, z), widen(of_gamma, w);
#pragma unroll
  for (int e = 0; e < kWide; ++e) z[e] = (kLayer ? z[e] - mean : z[e]) * inverse, g[e] = d[e] * w[e];
  if (bytes < 16) {
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      if (e * int(sizeof(Element)) >= bytes) z[e] = 0;
    }
  }
#pragma unroll
  for (int e = 0; e < kWide; ++e) sum.gz = fmaf(g[e], z[e], sum.gz), sum.g += kLayer ? g[e] : 0.f;
}

constexpr uint32_t kArray = kVectors * kThreads * 16, kStage = 2 * kArray;  // bytes of rows on their way: dy, then x

// Has row m on its way to a stage, each vector to the thread that asks for it, at `base`.
TILEKILN_DEVICE void ask_for_row(const Problem& a, long long m, bool wide, int mine, int step, uint32_t base) {
  if (m < a.rows) {
    const Element* const dy = static_cast<const Element*>(a.dy) + m * a.dy_row;
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int j = mine + i * step, bytes = (a.columns - j) * int(sizeof(Element));
      if (j >= a.columns) break;
      const uint32_t to = base + i * kThreads * 16;
      if (wide) {
        const int length = min(bytes, 16);
        copy_async_bytes(to, dy + j, length), copy_async_bytes(to + kArray, x + j, length);
      } else {
        store_shared(to, load_vector(dy + j, bytes, false));
        store_shared(to + kArray, load_vector(x + j, bytes, false));
      }
    }
  }
  copy_async_commit();
}

TILEKILN_DEVICE void derive(const BackwardParams& p) {
  extern __shared__ __align__(16) char ring[];
  __shared__ Pair shared[2][kThreads / 32];
  const Problem& a = p.problem;
  const bool wide = p.wide;
  const int lanes = p.lanes, teams = kThreads / lanes, team = threadIdx.x / lanes, lane = threadIdx.x & (lanes - 1);
  const int step = lanes * kWide, mine = lane * kWide, stages = p.stages;
  const float by = 1.f / float(a.columns);
  float* const dgamma = a.sums + 2 * (long long)blockIdx.x * a.columns;
  float* const dbeta = dgamma + a.columns;
  const auto bytes = [&](int j) { return (a.columns - j) * int(sizeof(Element)); };
  const Element* const gamma = static_cast<const Element*>(a.gamma);
  uint4 gammas[kVectors];
  float of_gamma[kVectors][kWide] = {}, of_beta[kVectors][kWide] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int j = mine + i * step;
    if (j < a.columns) gammas[i] = load_vector(gamma + j, bytes(j), wide);
  }
  const long long stride = (long long)gridDim.x * teams, begin = (long long)blockIdx.x * teams + team;
  const uint32_t own = shared_address(ring) + threadIdx.x * 16;
  const auto ask = [&](long long m, int stage) { ask_for_row(a, m, wide, mine, step, own + stage * kStage); };
  for (int s = 0; s < stages; ++s) ask(begin + s * stride, s);
  int turn = 0, stage = 0;
  float inverse = 0, mean = 0;
  if (begin < a.rows) inverse = a.inverse[begin], mean = kLayer ? a.mean[begin] : 0.f;
  for (long long m = begin; m < a.rows; m += stride, turn ^= 1) {
    const Element* const dy = static_cast<const Element*>(a.dy) + m * a.dy_row;
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
    Element* const dx = static_cast<Element*>(a.dx) + m * a.dx_row;
    float next_inverse = 0, next_mean = 0;
    if (m + stride < a.rows) next_inverse = a.inverse[m + stride], next_mean = kLayer ? a.mean[m + stride] : 0.f;
    Pair sum = {0, 0};
    const auto finish = [&](const float (&g)[kWide], const float (&z)[kWide], Pair means, int j) {
      float v[kWide];
#pragma unroll
      for (int e = 0; e < kWide; ++e) v[e] = inverse * fmaf(z[e], -means.gz, kLayer ? g[e] - means.g : g[e]);
      store_vector(dx + j, narrow(v), bytes(j), wide);
    };
    copy_async_wait(stages - 1);
    float g[kVectors][kWide], z[kVectors][kWide];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int j = mine + i * step;
      if (j >= a.columns) break;
      const uint32_t from = own + stage * kStage + i * kThreads * 16;
      float d[kWide];
      take_vector(load_shared(from), load_shared(from + kArray), gammas[i], bytes(j), mean, inverse, d, g[i], z[i],
                  sum);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        of_gamma[i][e] = fmaf(d[e], z[i][e], of_gamma[i][e]);
        if (kLayer) of_beta[i][e] += d[e];
      }
    }
    ask(m + stages * stride, stage);  // its vectors are in registers
    stage = stage + 1 == stages ? 0 : stage + 1;
    const auto beyond = [&](int j, float (&d)[kWide], float (&g)[kWide], float (&z)[kWide]) {
      take_vector(load_vector(dy + j, bytes(j), wide), load_vector(x + j, bytes(j), wide),
                  load_vector(gamma + j, bytes(j), wide), bytes(j), mean, inverse, d, g, z, sum);
    };
    for (int j = mine + kVectors * step; j < a.columns; j += step) {
      float d[kWide], g[kWide], z[kWide];
      beyond(j, d, g, z);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        if (e * int(sizeof(Element)) >= bytes(j)) continue;
        dgamma[j + e] = fmaf(d[e], z[e], m == begin ? 0.f : dgamma[j + e]);
        if (kLayer) dbeta[j + e] = d[e] + (m == begin ? 0.f : dbeta[j + e]);
      }
    }
    sum = sum_of(sum, team, lanes, shared[turn]);
    const Pair means = {sum.gz * by, sum.g * by};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int j = mine + i * step;
      if (j >= a.columns) break;
      finish(g[i], z[i], means, j);
    }
    for (int j = mine + kVectors * step; j < a.columns; j += step) {
      float d[kWide], g[kWide], z[kWide];
      beyond(j, d, g, z), finish(g, z, means, j);
    }
    inverse = next_inverse, mean = next_mean;
  }
  copy_async_wait<0>();
  __syncthreads();  // the ring becomes sums of columns: (teams, step * kVectors), dgamma before dbeta
  add_teams(of_gamma, of_beta, teams, team, step, mine, a.columns, reinterpret_cast<float*>(ring), dgamma, dbeta);
}

// dgamma and dbeta of the block's columns, kCount in a row of a thread at once: several threads have the same ones,
// each adds every so many parts, and their sums are added in turn.
template <int kCount> TILEKILN_DEVICE void join(const BackwardParams& p) {
  __shared__ float shared[kThreads][kCount];
  const Problem& a = p.problem;
  const int width = p.width / kCount, lanes = kThreads / width, lane = threadIdx.x / width;
  const int mine = threadIdx.x & (width - 1);
  const long long all = kLayer && a.dbeta ? 2ll * a.columns : a.columns, step = 2ll * a.columns;
  for (long long first = (long long)blockIdx.x * p.width; first < all; first += (long long)gridDim.x * p.width) {
    const long long column = first + mine * kCount;
    float sum[kCount] = {};
    if (column < all) {
      const float* from = a.sums + lane * step + column;
#pragma unroll 8
      for (int part = lane; part < int(a.parts); part += lanes, from += lanes * step) {
        if constexpr (kCount == 4) {
          const float4 v = __ldcg(reinterpret_cast<const float4*>(from));
          sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
        } else {
          sum[0] += __ldcg(from);
        }
      }
    }
#pragma unroll
    for (int e = 0; e < kCount; ++e) shared[threadIdx.x][e] = sum[e];
    __syncthreads();
    // Threads 0 to p.width - 1 have a column each.
    const long long to = first + threadIdx.x;
    if (int(threadIdx.x) < p.width && to < all) {
      const float* const sums = &shared[0][0] + threadIdx.x;
      float total = 0;
#pragma unroll 8
      for (int i = 0; i < lanes; ++i) total += sums[i * p.width];
      const bool of_gamma = to < a.columns;
      Element* const y = static_cast<Element*>(of_gamma ? a.dgamma : a.dbeta) + (of_gamma ? to : to - a.columns);
      *y = narrowed(total);
    }
    __syncthreads();
  }
}

}  // namespace tilekiln::cuda::norm

using namespace tilekiln::cuda;

extern "C" __constant__ norm::Build rows_build = {HELD, STAGES, kDtype, 512};

extern "C" __global__ void __launch_bounds__(norm::kThreads, 1) rows(const __grid_constant__ norm::BackwardParams p) {
  norm::derive(p);
}
extern "C" __global__ void __launch_bounds__(norm::kThreads)
    rows_joined(const __grid_constant__ norm::BackwardParams p) {
  norm::join<1>(p);
}
#if NORM == 2 && !defined(__HIP__)
extern "C" __global__ void __launch_bounds__(norm::kThreads, 1)
    rows_met(const __grid_constant__ norm::BackwardParams p) {
  norm::derive(p);
  meet_blocks(p.word);
  p.problem.columns % 4 == 0 ? norm::join<4>(p) : norm::join<1>(p);
}
#endif
