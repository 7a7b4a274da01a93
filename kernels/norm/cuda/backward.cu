// Derivatives of the norms. With z = (x - mean) inverse, g = dy gamma and means over a row:
//   dx = inverse (g - mean(g) - z mean(g z))      (rmsnorm2d: z = x inverse, no mean(g))
//   dgamma = sum of dy z over rows, dbeta = sum of dy
//
// A block has rows block, block + grid, ..: each of its threads the same columns of all of them, whose sums over rows stay in registers
// until the last row; columns beyond those held add to the block's part in memory. `join` adds the parts in one order.
// -D: HELD, NORM (1 layer, 2 rms); TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/backward_engine.h"
#include "kernels/norm/cuda/rows.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::Backward;

constexpr bool kLayer = NORM == 1;

struct Pair { float gz, g; };

TILEKILN_DEVICE Pair added(Pair a, Pair b) { return {a.gz + b.gz, a.g + b.g}; }

// Over the block, in one order. `shared`: 32 pairs that the row before the last one has used.
TILEKILN_DEVICE Pair sum_of(Pair v, Pair* shared) {
  const auto in_warp = [&](int width) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
      if (i < width) v = added(v, {__shfl_xor_sync(~0u, v.gz, i), __shfl_xor_sync(~0u, v.g, i)});
    }
  };
  in_warp(32);
  const int warps = blockDim.x / 32;
  if (warps == 1) return v;
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  v = shared[threadIdx.x & (warps - 1)];  // a power of two
  in_warp(warps);
  return v;
}

TILEKILN_DEVICE void derive(const Row<Problem>& p) {
  __shared__ Pair shared[2][32];
  const Problem& a = p.problem;
  const bool wide = p.wide;
  const int step = blockDim.x * kWide, mine = threadIdx.x * kWide;
  const float by = 1.f / float(a.columns);
  float* const dgamma = a.sums + 2 * (long long)blockIdx.x * a.columns;
  float* const dbeta = dgamma + a.columns;
  const auto bytes = [&](int j) { return (a.columns - j) * int(sizeof(Element)); };
  const auto gamma_at = [&](int j, float (&gamma)[kWide]) {
    widen(load_vector(static_cast<const Element*>(a.gamma) + j, bytes(j), wide), gamma);
  };
  float of_gamma[kHeld][kWide] = {}, of_beta[kHeld][kWide] = {};
  int turn = 0;
  uint4 dys[kHeld], xs[kHeld];
  const auto ask = [&](long long m) {
    if (m >= a.rows) return;
    const Element* const dy = static_cast<const Element*>(a.dy) + m * a.dy_row;
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int j = mine + i * step;
      if (j < a.columns) dys[i] = load_vector(dy + j, bytes(j), wide), xs[i] = load_vector(x + j, bytes(j), wide);
    }
  };
  ask(blockIdx.x);
  for (long long m = blockIdx.x; m < a.rows; m += gridDim.x, turn ^= 1) {
    const Element* const dy = static_cast<const Element*>(a.dy) + m * a.dy_row;
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
    Element* const dx = static_cast<Element*>(a.dx) + m * a.dx_row;
    const float inverse = a.inverse[m], mean = kLayer ? a.mean[m] : 0.f;
    // d, and z where there is a column.
    const auto widened = [&](uint4 of_dy, uint4 of_x, int j, float (&d)[kWide], float (&z)[kWide]) {
      widen(of_dy, d), widen(of_x, z);
#pragma unroll
      for (int e = 0; e < kWide; ++e) z[e] = e * int(sizeof(Element)) < bytes(j) ? (z[e] - mean) * inverse : 0.f;
    };
    Pair sum = {0, 0};
    const auto take = [&](int j, const float (&d)[kWide], const float (&z)[kWide]) {
      float gamma[kWide];
      gamma_at(j, gamma);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        const float g = d[e] * gamma[e];
        sum.gz = fmaf(g, z[e], sum.gz), sum.g += kLayer ? g : 0.f;
      }
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int j = mine + i * step;
      if (j >= a.columns) break;
      float d[kWide], z[kWide];
      widened(dys[i], xs[i], j, d, z);
      take(j, d, z);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        of_gamma[i][e] = fmaf(d[e], z[e], of_gamma[i][e]);
        if (kLayer) of_beta[i][e] += d[e];
      }
    }
    for (int j = mine + kHeld * step; j < a.columns; j += step) {
      float d[kWide], z[kWide];
      widened(load_vector(dy + j, bytes(j), wide), load_vector(x + j, bytes(j), wide), j, d, z);
      take(j, d, z);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        if (e * int(sizeof(Element)) >= bytes(j)) continue;
        const bool first = m == blockIdx.x;
        dgamma[j + e] = fmaf(d[e], z[e], first ? 0.f : dgamma[j + e]);
        if (kLayer) dbeta[j + e] = d[e] + (first ? 0.f : dbeta[j + e]);
      }
    }
    uint4 these[kHeld], those[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) these[i] = dys[i], those[i] = xs[i];
    ask(m + gridDim.x);  // under the wait for the sums
    sum = sum_of(sum, shared[turn]);
    const float mean_gz = sum.gz * by, mean_g = sum.g * by;
    const auto finish = [&](uint4 of_dy, uint4 of_x, int j) {
      float d[kWide], z[kWide], gamma[kWide];
      widened(of_dy, of_x, j, d, z);
      gamma_at(j, gamma);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        const float g = d[e] * gamma[e];
        d[e] = inverse * ((kLayer ? g - mean_g : g) - z[e] * mean_gz);
      }
      store_vector(dx + j, narrow(d), bytes(j), wide);
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int j = mine + i * step;
      if (j < a.columns) finish(these[i], those[i], j);
    }
    for (int j = mine + kHeld * step; j < a.columns; j += step)
      finish(load_vector(dy + j, bytes(j), wide), load_vector(x + j, bytes(j), wide), j);
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int j = mine + i * step;
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      if (j + e >= a.columns) continue;
      dgamma[j + e] = of_gamma[i][e];
      if (kLayer) dbeta[j + e] = of_beta[i][e];
    }
  }
}

// dgamma, and of block y = 1 dbeta, of 32 columns: 32 threads of each add every 32nd part, then these sums by halves.
TILEKILN_DEVICE void join(const Row<Problem>& p) {
  __shared__ float shared[32][33];
  const Problem& a = p.problem;
  const int lane = threadIdx.x & 31, of = threadIdx.x >> 5, j = blockIdx.x * 32 + lane;
  Element* const to = static_cast<Element*>(blockIdx.y == 0 ? a.dgamma : a.dbeta);
  const float* const from = a.sums + (blockIdx.y == 0 ? 0 : a.columns) + j;
  float sum = 0;
  if (j < a.columns) {
#pragma unroll 4
    for (long long part = of; part < a.parts; part += 32) sum += from[2 * part * a.columns];
  }
  shared[of][lane] = sum;
  __syncthreads();
  sum = shared[lane][of];  // of column `of`
#pragma unroll
  for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
  const int column = blockIdx.x * 32 + of;
  if (lane != 0 || column >= a.columns) return;
#ifdef TILEKILN_FP32
  to[column] = sum;
#else
  to[column] = Element(pack(sum, 0.f));
#endif
}

}  // namespace tilekiln::cuda::norm

using namespace tilekiln::cuda;

extern "C" __constant__ norm::Build rows_build = {HELD, kDtype};

extern "C" __global__ void __launch_bounds__(512) rows(const __grid_constant__ norm::Row<norm::Problem> p) {
  norm::derive(p);
}
extern "C" __global__ void __launch_bounds__(1024) rows_joined(const __grid_constant__ norm::Row<norm::Problem> p) {
  norm::join(p);
}
