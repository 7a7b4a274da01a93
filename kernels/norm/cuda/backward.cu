// SPDX-License-Identifier: MIT
// Derivatives of the norms. With z = (x - mean) inverse, g = dy gamma and means over a row:
//   dx = inverse (g - mean(g) - z mean(g z))      (rmsnorm2d: z = x inverse, no mean(g))
//   dgamma = sum of dy z over rows, dbeta = sum of dy
//
// A block is teams of threads that have a row each at a time, every thread the same columns of all of them: their sums over rows stay in
// registers until the last row, the teams' are added in shared memory, and the blocks' by `join`, when all have met or in a launch of its own, each in one order. Columns beyond those
// held add to the block's part in memory. The next rows are on their way to shared memory, each vector to the thread that asked for it.
// -D: HELD (vectors of 16-bit elements; twice as many of fp32), STAGES (rows of a team on their way at most), NORM (1 layer, 2 rms);
// TILEKILN_FP16, TILEKILN_FP32.
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

// A thread's columns, the same of every row of its team: those that registers hold, then those beyond.
struct Columns {
  const Problem& a;
  bool wide;
  int team, step, mine;  // columns from one vector of the thread to its next one; its first column

  __device__ __forceinline__ int bytes(int j) const { return (a.columns - j) * int(sizeof(Element)); }
  __device__ __forceinline__ uint4 load(const void* row, int j) const {
    return load_vector(static_cast<const Element*>(row) + j, bytes(j), wide);
  }
  // f(vector's number, its first column)
  template <class F> __device__ __forceinline__ void held(F&& f) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int j = mine + i * step;
      if (j >= a.columns) break;
      f(i, j);
    }
  }
  template <class F> __device__ __forceinline__ void beyond(F&& f) const {
    for (int j = mine + kVectors * step; j < a.columns; j += step) f(j);
  }
};

// Rows on their way to shared memory, each vector to the thread that asked for it: dy, then x.
struct Ring {
  static constexpr uint32_t kArray = kVectors * kThreads * 16, kStage = 2 * kArray;
  uint32_t own;

  __device__ __forceinline__ void ask(const Columns& of, long long m, int stage) const {
    const Problem& a = of.a;
    if (m < a.rows) {
      const Element* const dy = static_cast<const Element*>(a.dy) + m * a.dy_row;
      const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
      of.held([&](int i, int j) {
        const uint32_t to = own + stage * kStage + i * kThreads * 16;
        if (of.wide) {
          const int length = min(of.bytes(j), 16);
          copy_async_bytes(to, dy + j, length), copy_async_bytes(to + kArray, x + j, length);
        } else {
          store_shared(to, of.load(dy, j)), store_shared(to + kArray, of.load(x, j));
        }
      });
    }
    copy_async_commit();
  }
};

// g and z of a vector, 0 where there is no column; d is dy.
struct Vector { float d[kWide], g[kWide], z[kWide]; };

// A row under way.
struct RowState {
  float inverse, mean;
  Pair sum;

  __device__ __forceinline__ void take(const Columns& of, uint4 dy, uint4 x, uint4 gamma, int j, Vector& v) {
    float w[kWide];
    widen(dy, v.d), widen(x, v.z), widen(gamma, w);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      v.z[e] = (kLayer ? v.z[e] - mean : v.z[e]) * inverse;
      v.g[e] = v.d[e] * w[e];
    }
    if (of.bytes(j) < 16) {
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        if (e * int(sizeof(Element)) >= of.bytes(j)) v.z[e] = 0;
      }
    }
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      sum.gz = fmaf(v.g[e], v.z[e], sum.gz);
      sum.g += kLayer ? v.g[e] : 0.f;
    }
  }
  __device__ __forceinline__ void store(const Columns& of, const Vector& v, Pair means, Element* dx, int j) const {
    float to[kWide];
#pragma unroll
    for (int e = 0; e < kWide; ++e) to[e] = inverse * fmaf(v.z[e], -means.gz, kLayer ? v.g[e] - means.g : v.g[e]);
    store_vector(dx + j, narrow(to), of.bytes(j), of.wide);
  }
};

using Sums = float[kVectors][kWide];  // of a thread's columns over its rows

// The sums of the teams of a block, added in turn, become its part: dgamma, then dbeta. sums: (teams, columns held) of either.
TILEKILN_DEVICE void add_teams(const Columns& of, const Sums& of_gamma, const Sums& of_beta, float* sums,
                               float* dgamma) {
  constexpr int kSums = kThreads * kVectors * kWide;
  const int held = of.step * kVectors;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      const int at = of.team * held + of.mine + i * of.step + e;
      sums[at] = of_gamma[i][e];
      if (kLayer) sums[kSums + at] = of_beta[i][e];
    }
  }
  __syncthreads();
  for (int j = threadIdx.x; j < min(of.a.columns, held); j += kThreads) {
    float one = 0, other = 0;
    for (int at = j; at < kSums; at += held) {
      one += sums[at];
      if (kLayer) other += sums[kSums + at];
    }
    dgamma[j] = one;
    if (kLayer) dgamma[of.a.columns + j] = other;
  }
}

TILEKILN_DEVICE void derive(const BackwardParams& p) {
  extern __shared__ __align__(16) char raw[];
  __shared__ Pair shared[2][kThreads / 32];
  const Problem& a = p.problem;
  const int lanes = p.lanes, teams = kThreads / lanes, team = threadIdx.x / lanes;
  const Columns of = {a, bool(p.wide), team, lanes * kWide, int(threadIdx.x & (lanes - 1)) * kWide};
  float* const dgamma = a.sums + 2 * (long long)blockIdx.x * a.columns;
  uint4 gammas[kVectors];
  Sums of_gamma = {}, of_beta = {};
  of.held([&](int i, int j) { gammas[i] = of.load(a.gamma, j); });
  const long long stride = (long long)gridDim.x * teams, begin = (long long)blockIdx.x * teams + team;
  const Ring ring = {shared_address(raw) + threadIdx.x * 16};
  const int stages = p.stages;
  for (int s = 0; s < stages; ++s) ring.ask(of, begin + s * stride, s);
  int turn = 0, stage = 0;
  RowState row = {0, 0, {0, 0}};
  if (begin < a.rows) row.inverse = a.inverse[begin], row.mean = kLayer ? a.mean[begin] : 0.f;
  for (long long m = begin; m < a.rows; m += stride, turn ^= 1) {
    const Element* const dy = static_cast<const Element*>(a.dy) + m * a.dy_row;
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
    Element* const dx = static_cast<Element*>(a.dx) + m * a.dx_row;
    RowState next = {0, 0, {0, 0}};
    if (m + stride < a.rows) next.inverse = a.inverse[m + stride], next.mean = kLayer ? a.mean[m + stride] : 0.f;
    copy_async_wait(stages - 1);
    Vector v[kVectors];
    of.held([&](int i, int j) {
      const uint32_t from = ring.own + stage * Ring::kStage + i * kThreads * 16;
      row.take(of, load_shared(from), load_shared(from + Ring::kArray), gammas[i], j, v[i]);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        of_gamma[i][e] = fmaf(v[i].d[e], v[i].z[e], of_gamma[i][e]);
        if (kLayer) of_beta[i][e] += v[i].d[e];
      }
    });
    ring.ask(of, m + stages * stride, stage);  // its vectors are in registers
    stage = stage + 1 == stages ? 0 : stage + 1;
    const auto again = [&](int j, Vector& w) {
      row.take(of, of.load(dy, j), of.load(x, j), of.load(a.gamma, j), j, w);
    };
    of.beyond([&](int j) {
      Vector w;
      again(j, w);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        if (e * int(sizeof(Element)) >= of.bytes(j)) continue;
        float* const to = dgamma + j + e;
        *to = fmaf(w.d[e], w.z[e], m == begin ? 0.f : *to);
        if (kLayer) to[a.columns] = w.d[e] + (m == begin ? 0.f : to[a.columns]);
      }
    });
    const Pair sum = sum_of(row.sum, team, lanes, shared[turn]);
    const float by = 1.f / float(a.columns);
    const Pair means = {sum.gz * by, sum.g * by};
    of.held([&](int i, int j) { row.store(of, v[i], means, dx, j); });
    of.beyond([&](int j) {
      Vector w;
      again(j, w), row.store(of, w, means, dx, j);
    });
    row = next;
  }
  copy_async_wait<0>();
  __syncthreads();  // the ring becomes sums of columns
  add_teams(of, of_gamma, of_beta, reinterpret_cast<float*>(raw), dgamma);
}

// dgamma and dbeta of the block's columns, kCount in a row of a thread at once: several threads have the same ones, each adds every so many
// parts, and their sums are added in turn.
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
