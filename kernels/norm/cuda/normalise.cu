// SPDX-License-Identifier: MIT
// Rows normalised, and quantised: rmsnorm2d, layernorm2d, smoothquant and the two norms that quantise.
//
// Statistics are of the row as it is held. Deviations are from the mean as fp32 has it, and what that is off is taken
// from them. Everything is fp32, in one order.
// -D: HELD, STAGES, NORM (0 none, 1 layer, 2 rms), QUANTISED; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/quantise.h"
#include "kernels/norm/cuda/staged.h"
#include "kernels/norm/cuda/whole.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::Problem;

struct Shared {
  float4 moments[kClusterWarps];
  float most[kClusterWarps];
};

// Statistics of a row: mean + off is its mean, closer than fp32 has it, inverse 1 / rms or 1 / standard deviation.
struct Statistics { float mean = 0, off = 0, inverse = 1; };

// A vector of a row, normalised; those of gamma and beta are at its columns.
TILEKILN_DEVICE void normalise_vector(const Problem& a, const Statistics& of, uint4 vector, uint4 gamma, uint4 beta,
                                      float (&v)[kWide]) {
  widen(vector, v);
  if constexpr (NORM == 0) return;
  float by[kWide], shift[kWide];
  widen(gamma, by), widen(beta, shift);
  if (NORM == 2 && a.rounding) {
#pragma unroll
    for (int e = 0; e < kWide; ++e) v[e] = rounded(v[e] * of.inverse) * by[e];
    return;
  }
  const float less = of.off * of.inverse;
#pragma unroll
  for (int e = 0; e < kWide; ++e)
    v[e] = NORM == 1 ? fmaf(fmaf(v[e] - of.mean, of.inverse, -less), by[e], shift[e]) : v[e] * of.inverse * by[e];
}

// Sums of a warp's columns, of deviations from `mean`, which is about theirs: of squares, and of themselves.
struct Moments { float count, mean, off, squares; };

TILEKILN_DEVICE float over_warp(float v) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(~0u, v, i);
  return v;
}
// Sum over as many lanes as a team has warps.
TILEKILN_DEVICE float over_warps(const Team& team, float v) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) {
    if (team.has(i)) v += __shfl_xor_sync(~0u, v, i);
  }
  return v;
}

// Combines (count, mean, M2) of all warps of a team as Chan et al. do, relative to the first warp's mean: nothing is
// lost in a difference of large sums.
TILEKILN_DEVICE Statistics joined_moments(const Problem& a, const Team& team, Moments of, float4* shared) {
  const float by = 1 / float(a.columns);
  of.squares = over_warp(of.squares), of.off = over_warp(of.off);
  if (!team.warp) {
    tell(team, shared, make_float4(of.count, of.mean, of.off, of.squares)), meet(team);
    const int at = threadIdx.x & 31 & (team.warps() - 1);  // warps are a power of two
    const float first = shared[0].y;
    float4 one[2];
    float own[2], apart[2];  // means of warps less theirs of one.y, and less the first's
    of.mean = first, of.off = of.squares = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i > 0 && !team.cluster) break;
      one[i] = shared[at + 32 * i];
      own[i] = one[i].x > 0 ? __fdividef(one[i].z, one[i].x) : 0.f;
      apart[i] = one[i].y - first + own[i];
      of.off += one[i].x * apart[i];
    }
    of.off = over_warps(team, of.off);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i > 0 && !team.cluster) break;
      const float from = apart[i] - of.off * by;
      of.squares += fmaf(-own[i], one[i].z, one[i].w) + one[i].x * from * from;
    }
    of.squares = over_warps(team, of.squares);
    of.off *= by;
  } else {
    of.off *= by;
    of.squares = fmaf(-of.off * of.off, float(a.columns), of.squares);
  }
  return {of.mean, of.off, 1 / sqrtf(larger_or_nan(of.squares, 0.f) * by + a.epsilon)};
}
TILEKILN_DEVICE float inverse_of(const Problem& a, float squares) {
  return 1 / sqrtf(squares / float(a.columns) + a.epsilon);
}

TILEKILN_DEVICE void put_statistics(const Problem& a, const Team& team, long long m, const Statistics& of) {
  if (team.lane != 0) return;
  if (NORM == 1 && a.mean) a.mean[m] = of.mean + of.off;
  if (NORM != 0 && a.inverse) a.inverse[m] = of.inverse;
}

template <class Row>
TILEKILN_DEVICE Statistics statistics_of(const Problem& a, const Team& team, float4* shared, Row& row) {
  if constexpr (NORM == 0) return {};
  Moments of = {};
  if constexpr (NORM == 1) {
    row.pass([&](uint4 vector, int, int left) __attribute__((always_inline)) {
      float v[kWide];
      widen(vector, v);  // 0 where there is no element
#pragma unroll
      for (int e = 0; e < kWide; ++e) of.mean += v[e];
      of.count += float(min(left, kWide));
    });
    of.count = over_warp(of.count), of.mean = over_warp(of.mean);
    of.mean = of.count > 0 ? __fdividef(of.mean, of.count) : 0.f;
  }
  row.pass([&](uint4 vector, int, int left) __attribute__((always_inline)) {
    float v[kWide];
    widen(vector, v);
    Moments part = {};
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      if (NORM == 1) v[e] = Row::kPartly && e >= left ? 0.f : v[e] - of.mean;
      part.squares = fmaf(v[e], v[e], part.squares), part.off += v[e];
    }
    if (NORM == 2 || left > 0) of.squares += part.squares, of.off += part.off;
  });
  if constexpr (NORM == 1) return joined_moments(a, team, of, shared);
  return {0, 0, inverse_of(a, sum_of(team, of.squares, reinterpret_cast<float*>(shared)))};
}

TILEKILN_DEVICE void normalise(const Params<Problem>& p) {
  __shared__ Shared shared;
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  const bool wide = p.wide;
  for (long long m = team.row; m < a.rows; m += team.step) {
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
    const Element* const residual = a.residual ? static_cast<const Element*>(a.residual) + m * a.residual_row : nullptr;
    Element* const stored = a.residual_out ? static_cast<Element*>(a.residual_out) + m * a.residual_out_row : nullptr;
    const auto added = [&](int j) {
      const int bytes = bytes_of(a.columns - j);
      uint4 vector = load_vector(x + j, bytes, wide);
      if (residual == nullptr) return vector;
      float v[kWide], r[kWide];
      widen(vector, v), widen(load_vector(residual + j, bytes, wide), r);
#pragma unroll
      for (int i = 0; i < kWide; ++i) v[i] += r[i];
      return narrow(v);
    };
    const auto first = [&](int j) {
      const uint4 vector = added(j);
      if (stored != nullptr) store_vector(stored + j, vector, bytes_of(a.columns - j), wide);
      return vector;
    };
    // Columns beyond those held: residual_out, which may be residual, is written in the first pass over them.
    const auto again = [&](int j, bool passed) {
      if (stored == nullptr) return added(j);
      return passed ? load_vector(stored + j, bytes_of(a.columns - j), wide) : first(j);
    };
    auto row = held<1>(team, a.columns, wide, first, again);
    const Statistics of = statistics_of(a, team, shared.moments, row);
    put_statistics(a, team, m, of);
    const auto normalised = [&](uint4 vector, int j, int left, float (&v)[kWide]) {
      const auto beside = [&](const void* from) {
        return from == nullptr ? make_uint4(0, 0, 0, 0)
                               : load_vector(static_cast<const Element*>(from) + j, bytes_of(left), wide);
      };
      normalise_vector(a, of, vector, beside(NORM != 0 ? a.gamma : nullptr), beside(NORM == 1 ? a.beta : nullptr), v);
    };
    if constexpr (!QUANTISED) {
      Element* const y = static_cast<Element*>(a.y) + m * a.y_row;
      row.pass([&](uint4 vector, int j, int left) {
        float v[kWide];
        normalised(vector, j, left, v);
        store_vector(y + j, narrow(v), bytes_of(left), wide);
      });
    } else {
      uint8_t* const y = static_cast<uint8_t*>(a.y) + m * a.y_row;
      Element* const plain = a.unquantised ? static_cast<Element*>(a.unquantised) + m * a.unquantised_row : nullptr;
      const auto smooth = [&](int j, int left, float (&v)[kWide]) {
        if (a.smooth_scale == nullptr) return;
#pragma unroll
        for (int i = 0; i < kWide; ++i) v[i] *= i < left ? a.smooth_scale[j + i] : 0.f;
      };
      unsigned top = 0;  // the bits of the largest magnitude: those of NaN are above infinity's
      row.pass([&](uint4 vector, int j, int left) {
        float v[kWide];
        normalised(vector, j, left, v);
        if (plain) store_vector(plain + j, narrow(v), bytes_of(left), wide);
        smooth(j, left, v);
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          if (i < left) top = max(top, __float_as_uint(v[i]) & 0x7fffffffu);
        }
      });
      top = joined(team, top, reinterpret_cast<unsigned*>(shared.most),
                   [](unsigned one, unsigned other) { return max(one, other); });
      const Scale to = scale_of(__uint_as_float(top), a.y_dtype != 0);
      if (team.lane == 0) a.y_scale[m] = to.scale;
      row.pass([&](uint4 vector, int j, int left) {
        uint32_t words[kWide / 4] = {};
        if (to.some) {
          float v[kWide];
          normalised(vector, j, left, v), smooth(j, left, v);
#pragma unroll
          for (int i = 0; i < kWide / 4; ++i) words[i] = quantised(v + 4 * i, to.by, a.y_dtype != 0);
        }
        store_bytes(y + j, words, left);
      });
    }
    if (!team.warp && m + team.step < a.rows) __syncthreads();  // shared is the next row's
  }
}

// A vector times smooth_scale, where it is given.
TILEKILN_DEVICE void smooth(const Problem& a, Place at, int n, float (&v)[kWide]) {
  if (a.smooth_scale == nullptr) return;
#pragma unroll
  for (int i = 0; i < kWide; i += 4) {
    const uint4 by = load_vector_if(at.there(n), a.smooth_scale + at.column(n) + i);
    v[i] *= __uint_as_float(by.x), v[i + 1] *= __uint_as_float(by.y);
    v[i + 2] *= __uint_as_float(by.z), v[i + 3] *= __uint_as_float(by.w);
  }
}

// The row's scale and bytes: of what `make` made of its vectors, times `by`, of which `most` is the largest magnitude.
template <class Source, class Make>
TILEKILN_DEVICE void put_quantised(const Problem& a, const Team& team, long long m, Source& row, Make&& make,
                                   float most, float by) {
  const Scale to = scale_of(most, a.y_dtype != 0);
  if (team.lane == 0) a.y_scale[m] = to.scale;
  uint8_t* const y = static_cast<uint8_t*>(a.y) + m * a.y_row;
  const auto put = [&](auto&& bytes) __attribute__((always_inline)) {
    row.kept(make, [&](const Values& made, Place at) __attribute__((always_inline)) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        uint32_t words[kWide / 4];
#pragma unroll
        for (int e = 0; e < kWide / 4; ++e) words[e] = bytes(made[i] + 4 * e);
        if (at.there(i)) store_bytes(y + at.column(i), words);
      }
    });
  };
  if (!to.some)
    put([](const float*) { return 0u; });
  else if (a.y_dtype != 0)
    put([&](const float* v) { return quantised(v, to.by * by, true); });
  else
    put([&](const float* v) { return quantised(v, to.by * by, false); });
}

// A row whose largest magnitude follows from that of x gamma smooth_scale: that and the sum of squares are taken in one
// pass.
template <class Source>
TILEKILN_DEVICE void quantise_whole(const Problem& a, const Team& team, long long m, Source& row, Shared& shared) {
  const auto scale = [&](const Vectors& vector, Place at, Values& made, auto&& look) __attribute__((always_inline)) {
    [[maybe_unused]] Vectors gamma;
    if constexpr (NORM == 2) row.gamma(at, a.gamma, gamma);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      widen(vector[i], made[i]);
      if constexpr (NORM == 2) {
        float by[kWide];
        widen(gamma[i], by);
#pragma unroll
        for (int e = 0; e < kWide; ++e) made[i][e] *= by[e];
      }
      smooth(a, at, i, made[i]);
      look(vector[i], made[i]);
    }
  };
  float squares = 0, most = 0;
  row.keep([&](const Vectors& vector, Place at, Values& made) __attribute__((always_inline)) {
    scale(vector, at, made, [&](uint4 of, const float (&v)[kWide]) __attribute__((always_inline)) {
      float x[kWide];
      widen(of, x);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        if (NORM == 2) squares = fmaf(x[e], x[e], squares);
        most = larger_or_nan(most, fabsf(v[e]));
      }
    });
  });
  join_both(
      team, squares, most, reinterpret_cast<float (&)[2][kClusterWarps]>(shared.moments),
      [](float one, float other) { return one + other; }, larger_or_nan);
  const float inverse = NORM == 2 ? inverse_of(a, squares) : 1.f;
  put_statistics(a, team, m, {0, 0, inverse});
  const auto make = [&](const Vectors& vector, Place at, Values& made) __attribute__((always_inline)) {
    scale(vector, at, made, [](uint4, const float (&)[kWide]) {});
  };
  put_quantised(a, team, m, row, make, most * inverse, inverse);
}

// Normalises a row whose vectors are read once.
template <class Source>
TILEKILN_DEVICE void normalise_whole(const Problem& a, const Team& team, long long m, Source& row, Shared& shared) {
  const Statistics of = statistics_of(a, team, shared.moments, row);
  put_statistics(a, team, m, of);
  const auto make = [&](const Vectors& vector, Place at, Values& made, auto&& look) __attribute__((always_inline)) {
    Vectors gamma, beta;
    row.gamma(at, a.gamma, gamma);
    row.beta(at, NORM == 1 ? a.beta : nullptr, beta);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      normalise_vector(a, of, vector[i], gamma[i], beta[i], made[i]);
      if (QUANTISED) smooth(a, at, i, made[i]);
      look(made[i], i);
    }
  };
  const auto again = [&](const Vectors& vector, Place at, Values& made)
                         __attribute__((always_inline)) { make(vector, at, made, [](const float (&)[kWide], int) {}); };
  if constexpr (QUANTISED) {
    float most = 0;
    row.keep([&](const Vectors& vector, Place at, Values& made) __attribute__((always_inline)) {
      make(vector, at, made, [&](const float (&v)[kWide], int i) __attribute__((always_inline)) {
        float here = 0;
#pragma unroll
        for (int e = 0; e < kWide; ++e) here = larger_or_nan(here, fabsf(v[e]));
        most = at.there(i) ? larger_or_nan(most, here) : most;
      });
    });
    put_quantised(a, team, m, row, again, joined(team, most, shared.most, larger_or_nan), 1);
  } else {
    row.last_groups([&](Vectors& vector, Place at) __attribute__((always_inline)) {
      Values made;
      again(vector, at, made);
#pragma unroll
      for (int i = 0; i < kHeld; ++i) vector[i] = narrow(made[i]);
      store(at, vector, static_cast<Element*>(a.y) + m * a.y_row);
    });
  }
}

template <class Source>
TILEKILN_DEVICE void finish_whole(const Problem& a, const Team& team, long long m, Source& row, Shared& shared) {
  if constexpr (QUANTISED && NORM != 1)
    quantise_whole(a, team, m, row, shared);
  else
    normalise_whole(a, team, m, row, shared);
}
// Vectors of row m become those of x + residual.
TILEKILN_DEVICE void add_residual(const Problem& a, long long m, Place at, Vectors& vector) {
  Vectors other;
  load_once(at, static_cast<const Element*>(a.residual) + m * a.residual_row, other);
  add(vector, other);
  if (a.residual_out) store(at, vector, static_cast<Element*>(a.residual_out) + m * a.residual_out_row);
}

// A row in the registers of a team. `begun`: what comes between its loads and its sums.
template <bool kAdds, class Begun>
TILEKILN_DEVICE void row_in_registers(const Params<Problem>& p, const Team& team, Begun&& begun) {
  __shared__ Shared shared;
  const Problem& a = p.problem;
  const long long m = team.row;
  Whole<NORM != 0> row(team, a.columns, static_cast<const Element*>(a.x) + m * a.x_row, a.gamma);
  if constexpr (kAdds) add_residual(a, m, row.at, row.vector);
  begun();
  finish_whole(a, team, m, row, shared);
}
template <bool kAdds> TILEKILN_DEVICE void whole_rows(const Params<Problem>& p) {
  const Team team = team_of(p.warps);
  if (team.row < p.problem.rows)
    row_in_registers<kAdds>(p, team, [] {});  // of four rows a block, which meet no barrier
}
#if TILEKILN_CLUSTERS
template <bool kAdds> TILEKILN_DEVICE void cluster_rows(const Params<Problem>& p) {
  const Team team = begin_cluster();
  row_in_registers<kAdds>(p, team,
                          [] { cluster_wait(); });  // all blocks have begun: there is shared memory to store to
}
#endif

TILEKILN_DEVICE void staged_rows(const Params<Problem>& p) {
  __shared__ Shared shared;
  const Problem& a = p.problem;
  const Team team = team_of(false);
  Staged row;
  stage(row, a.x, a.x_row, a.rows, a.columns, p.stages);
  for (long long m = team.row; m < a.rows; m += team.step) {
    row.begin();
    if (NORM != 0 && a.residual != nullptr)
      row.change([&](Vectors& vector, Place at) { add_residual(a, m, at, vector); });
    finish_whole(a, team, m, row, shared);
    __syncthreads();  // shared is the next row's
  }
}

}  // namespace tilekiln::cuda::norm

using namespace tilekiln::cuda;

extern "C" __constant__ norm::Build rows_build = {HELD, STAGES, kDtype, 1024, TILEKILN_CLUSTERS, kEarly};

extern "C" __global__ void __launch_bounds__(1024) rows(const __grid_constant__ norm::Params<norm::Problem> p) {
  begin_between_launches();
  norm::normalise(p);
}
extern "C" __global__ void __launch_bounds__(1024) rows_whole(const __grid_constant__ norm::Params<norm::Problem> p) {
  begin_between_launches();
  norm::whole_rows<false>(p);
}
#if STAGES > 0
extern "C" __global__ void __launch_bounds__(norm::kStagedThreads, 1)
    rows_staged(const __grid_constant__ norm::Params<norm::Problem> p) {
  norm::staged_rows(p);
}
#endif
#if NORM != 0
extern "C" __global__ void __launch_bounds__(1024) added_whole(const __grid_constant__ norm::Params<norm::Problem> p) {
  begin_between_launches();
  norm::whole_rows<true>(p);
}
#endif

#if TILEKILN_CLUSTERS
TILEKILN_CLUSTER_KERNEL rows_cluster(const __grid_constant__ norm::Params<norm::Problem> p) {
  norm::cluster_rows<false>(p);
}
#if NORM != 0
TILEKILN_CLUSTER_KERNEL added_cluster(const __grid_constant__ norm::Params<norm::Problem> p) {
  norm::cluster_rows<true>(p);
}
#endif
#endif
