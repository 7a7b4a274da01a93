// Rows normalised, and quantised: rmsnorm2d, layernorm2d, smoothquant and the two norms that quantise.
//
// Statistics are of the row as it is held. Deviations are from the mean as fp32 has it, and what that is off is taken from them. Everything is fp32,
// in one order.
// -D: HELD, STAGES, NORM (0 none, 1 layer, 2 rms), QUANTISED; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/quantise.h"
#include "kernels/norm/cuda/staged.h"
#include "kernels/norm/cuda/whole.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::Problem;

// Sums over a row: of squares, and of layernorm2d those of deviations from the mean as fp32 has it, which becomes what that is off.
struct Moments { float squares = 0, off = 0; };

// 1 / rms or 1 / standard deviation, whose squares are less by that of `off`.
TILEKILN_DEVICE float inverse_of(const Problem& a, const Team& team, Moments& of, float (&shared)[4][32]) {
  const auto plus = [](float one, float other) { return one + other; };
  const float by = float(a.columns);
  if (NORM == 1) {
    join_both(team, of.squares, of.off, reinterpret_cast<float (&)[2][32]>(shared[1]), plus, plus);
    of.off /= by;
  } else {
    of.squares = joined(team, of.squares, shared[1], plus);
  }
  const float variance = of.squares / by;
  return 1 / sqrtf((NORM == 1 ? larger_or_nan(fmaf(-of.off, of.off, variance), 0.f) : variance) + a.epsilon);
}

TILEKILN_DEVICE void normalise(const Row<Problem>& p) {
  __shared__ float shared[4][32];
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  const bool wide = p.wide;
  for (long long m = team.row; m < a.rows; m += team.step) {
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
    const Element* const residual = a.residual ? static_cast<const Element*>(a.residual) + m * a.residual_row : nullptr;
    Element* const stored = a.residual_out ? static_cast<Element*>(a.residual_out) + m * a.residual_out_row : nullptr;
    const auto added = [&](int j) {
      const int bytes = (a.columns - j) * int(sizeof(Element));
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
      if (stored != nullptr) store_vector(stored + j, vector, (a.columns - j) * int(sizeof(Element)), wide);
      return vector;
    };
    // Of columns beyond those held: residual_out, which may be residual, is written in the first pass over them.
    bool written = false;
    const auto again = [&](int j) {
      if (stored == nullptr) return added(j);
      return written ? load_vector(stored + j, (a.columns - j) * int(sizeof(Element)), wide) : first(j);
    };
    auto row = held<1>(team, a.columns, first, again);
    float mean = 0, off = 0, inverse = 1;
    if constexpr (NORM == 1) {
      float sum = 0;
      row.each([&](uint4 vector, int, int) {
        float v[kWide];
        widen(vector, v);
#pragma unroll
        for (int i = 0; i < kWide; ++i) sum += v[i];
      });
      written = true;
      mean = sum_of(team, sum, shared[0]) / float(a.columns);
    }
    if constexpr (NORM != 0) {
      Moments of;
      row.each([&](uint4 vector, int, int bytes) {
        float v[kWide];
        widen(vector, v);
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          if (NORM == 1) v[i] = i * int(sizeof(Element)) < bytes ? v[i] - mean : 0.f;
          of.squares = fmaf(v[i], v[i], of.squares);
          if (NORM == 1) of.off += v[i];
        }
      });
      written = true;
      inverse = inverse_of(a, team, of, shared);
      off = of.off;
      if (team.lane == 0) {
        if (NORM == 1 && a.mean) a.mean[m] = mean + off;
        if (a.inverse) a.inverse[m] = inverse;
      }
    }
    const auto normalised = [&](uint4 vector, int j, int bytes, float (&v)[kWide]) {
      widen(vector, v);
      if constexpr (NORM == 0) return;
      float gamma[kWide], beta[kWide] = {};
      widen(load_vector(static_cast<const Element*>(a.gamma) + j, bytes, wide), gamma);
      if (NORM == 1 && a.beta) widen(load_vector(static_cast<const Element*>(a.beta) + j, bytes, wide), beta);
      if (NORM == 2 && a.rounding) {
#pragma unroll
        for (int i = 0; i < kWide; ++i) v[i] = rounded(v[i] * inverse) * gamma[i];
        return;
      }
#pragma unroll
      for (int i = 0; i < kWide; ++i)
        v[i] = NORM == 1 ? fmaf((v[i] - mean - off) * inverse, gamma[i], beta[i]) : v[i] * inverse * gamma[i];
    };
#if !QUANTISED
    Element* const y = static_cast<Element*>(a.y) + m * a.y_row;
    row.each([&](uint4 vector, int j, int bytes) {
      float v[kWide];
      normalised(vector, j, bytes, v);
      store_vector(y + j, narrow(v), bytes, wide);
    });
#else
    uint8_t* const y = static_cast<uint8_t*>(a.y) + m * a.y_row;
    Element* const plain = a.unquantised ? static_cast<Element*>(a.unquantised) + m * a.unquantised_row : nullptr;
    const auto smooth = [&](int j, int bytes, float (&v)[kWide]) {
      if (a.smooth_scale == nullptr) return;
#pragma unroll
      for (int i = 0; i < kWide; ++i) v[i] *= i * int(sizeof(Element)) < bytes ? a.smooth_scale[j + i] : 0.f;
    };
    unsigned top = 0;  // the bits of the largest magnitude: those of NaN are above infinity's
    row.each([&](uint4 vector, int j, int bytes) {
      float v[kWide];
      normalised(vector, j, bytes, v);
      if (plain) store_vector(plain + j, narrow(v), bytes, wide);
      smooth(j, bytes, v);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        if (i * int(sizeof(Element)) < bytes) top = max(top, __float_as_uint(v[i]) & 0x7fffffffu);
      }
    });
    written = true;
    top = joined(team, top, reinterpret_cast<unsigned*>(shared[3]),
                 [](unsigned one, unsigned other) { return max(one, other); });
    const Scale to = scale_of(__uint_as_float(top), a.y_dtype != 0);
    if (team.lane == 0) a.y_scale[m] = to.scale;
    row.each([&](uint4 vector, int j, int bytes) {
      uint32_t words[kWide / 4] = {};
      if (to.some) {
        float v[kWide];
        normalised(vector, j, bytes, v), smooth(j, bytes, v);
#pragma unroll
        for (int i = 0; i < kWide / 4; ++i) words[i] = quantised(v + 4 * i, to.by, a.y_dtype != 0);
      }
      store_bytes(y + j, words, bytes / int(sizeof(Element)));
    });
#endif
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

#if QUANTISED
// A vector of a row whose scale is known, as bytes: `by` makes numbers to be rounded of v.
TILEKILN_DEVICE void store_quantised(const Problem& a, Place at, int n, uint8_t* y, const Scale& to, float by,
                                     const float (&v)[kWide]) {
  const uint32_t mask = to.some ? ~0u : 0u;
  uint32_t words[kWide / 4];
  if (a.y_dtype != 0) {
#pragma unroll
    for (int e = 0; e < kWide / 4; ++e) words[e] = quantised(v + 4 * e, by, true) & mask;
  } else {
#pragma unroll
    for (int e = 0; e < kWide / 4; ++e) words[e] = quantised(v + 4 * e, by, false) & mask;
  }
  if (at.there(n)) store_bytes(y + at.column(n), words);
}
#endif

// A row whose largest magnitude follows from that of x gamma smooth_scale: that and the sum of squares are taken in one pass.
template <class Source>
TILEKILN_DEVICE void quantise_whole(const Problem& a, const Team& team, long long m, Source& row,
                                    float (&shared)[4][32]) {
  const auto scaled = [&](const Vectors& vector, const Vectors& gamma, Place at, int i, float (&v)[kWide])
                          __attribute__((always_inline)) {
                            widen(vector[i], v);
                            if constexpr (NORM == 2) {
                              float by[kWide];
                              widen(gamma[i], by);
#pragma unroll
                              for (int e = 0; e < kWide; ++e) v[e] *= by[e];
                            }
                            smooth(a, at, i, v);
                          };
  float squares = 0, most = 0;
  row.pass([&](const Vectors& vector, Place at) __attribute__((always_inline)) {
    Vectors gamma;
    if constexpr (NORM == 2) row.gamma(at, a.gamma, gamma);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      float v[kWide];
      if constexpr (NORM == 2) {
        widen(vector[i], v);
#pragma unroll
        for (int e = 0; e < kWide; ++e) squares = fmaf(v[e], v[e], squares);
      }
      scaled(vector, gamma, at, i, v);
#pragma unroll
      for (int e = 0; e < kWide; ++e) most = larger_or_nan(most, fabsf(v[e]));
    }
  });
  join_both(
      team, squares, most, reinterpret_cast<float (&)[2][32]>(shared),
      [](float one, float other) { return one + other; }, larger_or_nan);
  const float inverse = NORM == 2 ? 1 / sqrtf(squares / float(a.columns) + a.epsilon) : 1.f;
  const Scale to = scale_of(most * inverse, a.y_dtype != 0);
  if (team.lane == 0) {
    a.y_scale[m] = to.scale;
    if (NORM == 2 && a.inverse) a.inverse[m] = inverse;
  }
  uint8_t* const y = static_cast<uint8_t*>(a.y) + m * a.y_row;
  row.last_pass([&](const Vectors& vector, Place at) __attribute__((always_inline)) {
    Vectors gamma;
    if constexpr (NORM == 2) row.gamma(at, a.gamma, gamma);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      float v[kWide];
      scaled(vector, gamma, at, i, v);
      store_quantised(a, at, i, y, to, to.by * inverse, v);
    }
  });
}

// As normalise, of a row whose vectors are read once.
template <class Source>
TILEKILN_DEVICE void normalise_whole(const Problem& a, const Team& team, long long m, Source& row,
                                     float (&shared)[4][32]) {
  float mean = 0;
  if constexpr (NORM == 1) {
    float sum = 0;
    row.pass([&](const Vectors& vector, Place) __attribute__((always_inline)) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        float v[kWide];
        widen(vector[i], v);
#pragma unroll
        for (int e = 0; e < kWide; ++e) sum += v[e];
      }
    });
    mean = sum_of(team, sum, shared[0]) / float(a.columns);
  }
  Moments of;
  row.pass([&](const Vectors& vector, Place at) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      float v[kWide];
      Moments part;
      widen(vector[i], v);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        if (NORM == 1) v[e] -= mean;
        part.squares = fmaf(v[e], v[e], part.squares);
        if (NORM == 1) part.off += v[e];
      }
      of.squares += NORM == 2 || at.there(i) ? part.squares : 0.f;
      if (NORM == 1) of.off += at.there(i) ? part.off : 0.f;
    }
  });
  const float inverse = inverse_of(a, team, of, shared), off = of.off;
  if (team.lane == 0) {
    if (NORM == 1 && a.mean) a.mean[m] = mean + off;
    if (a.inverse) a.inverse[m] = inverse;
  }
  const auto normalised = [&](uint4 vector, uint4 gamma, Place at, int i,
                              float (&v)[kWide]) __attribute__((always_inline)) {
    float by[kWide], shift[kWide] = {};
    widen(vector, v), widen(gamma, by);
    if (NORM == 1)
      widen(load_vector_if(a.beta && at.there(i), static_cast<const Element*>(a.beta) + at.column(i)), shift);
    if (!QUANTISED && NORM == 2 && a.rounding) {
#pragma unroll
      for (int e = 0; e < kWide; ++e) v[e] = rounded(v[e] * inverse) * by[e];
      return;
    }
#pragma unroll
    for (int e = 0; e < kWide; ++e)
      v[e] = NORM == 1 ? fmaf((v[e] - mean - off) * inverse, by[e], shift[e]) : v[e] * inverse * by[e];
    if (QUANTISED) smooth(a, at, i, v);
  };
#if QUANTISED
  float most = 0;
  row.pass([&](const Vectors& vector, Place at) __attribute__((always_inline)) {
    Vectors gamma;
    row.gamma(at, a.gamma, gamma);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      float v[kWide], here = 0;
      normalised(vector[i], gamma[i], at, i, v);
#pragma unroll
      for (int e = 0; e < kWide; ++e) here = larger_or_nan(here, fabsf(v[e]));
      most = at.there(i) ? larger_or_nan(most, here) : most;
    }
  });
  most = joined(team, most, shared[3], larger_or_nan);
  const Scale to = scale_of(most, a.y_dtype != 0);
  if (team.lane == 0) a.y_scale[m] = to.scale;
  uint8_t* const y = static_cast<uint8_t*>(a.y) + m * a.y_row;
  row.last_pass([&](const Vectors& vector, Place at) __attribute__((always_inline)) {
    Vectors gamma;
    row.gamma(at, a.gamma, gamma);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      float v[kWide];
      normalised(vector[i], gamma[i], at, i, v);
      store_quantised(a, at, i, y, to, to.by, v);
    }
  });
#else
  row.last_pass([&](Vectors& vector, Place at) __attribute__((always_inline)) {
    Vectors gamma;
    row.gamma(at, a.gamma, gamma);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      float v[kWide];
      normalised(vector[i], gamma[i], at, i, v);
      vector[i] = narrow(v);
    }
    store(at, vector, static_cast<Element*>(a.y) + m * a.y_row);
  });
#endif
}

template <class Source>
TILEKILN_DEVICE void finish_whole(const Problem& a, const Team& team, long long m, Source& row,
                                  float (&shared)[4][32]) {
#if QUANTISED && NORM != 1
  quantise_whole(a, team, m, row, shared);
#else
  normalise_whole(a, team, m, row, shared);
#endif
}
// Vectors of row m become those of x + residual.
TILEKILN_DEVICE void add_residual(const Problem& a, long long m, Place at, Vectors& vector) {
  Vectors other;
  load_once(at, static_cast<const Element*>(a.residual) + m * a.residual_row, other);
  add(vector, other);
  if (a.residual_out) store(at, vector, static_cast<Element*>(a.residual_out) + m * a.residual_out_row);
}

template <bool kAdds> TILEKILN_DEVICE void whole_rows(const Row<Problem>& p) {
  __shared__ float shared[4][32];
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  const long long m = team.row;
  if (m >= a.rows) return;  // of four rows a block, which meet no barrier
  constexpr bool kGamma = NORM != 0;
  Whole<kGamma> row(team, a.columns, static_cast<const Element*>(a.x) + m * a.x_row, a.gamma);
  if constexpr (kAdds) add_residual(a, m, row.at, row.vector);
  finish_whole(a, team, m, row, shared);
}

TILEKILN_DEVICE void staged_rows(const Row<Problem>& p) {
  __shared__ float shared[4][32];
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

extern "C" __constant__ norm::Build rows_build = {HELD, STAGES, kDtype, 1024};

extern "C" __global__ void __launch_bounds__(1024) rows(const __grid_constant__ norm::Row<norm::Problem> p) {
  norm::normalise(p);
}
extern "C" __global__ void __launch_bounds__(1024) rows_whole(const __grid_constant__ norm::Row<norm::Problem> p) {
  norm::whole_rows<false>(p);
}
extern "C" __global__ void __launch_bounds__(norm::kStagedThreads, 1)
    rows_staged(const __grid_constant__ norm::Row<norm::Problem> p) {
  norm::staged_rows(p);
}
#if NORM != 0
extern "C" __global__ void __launch_bounds__(1024) added_whole(const __grid_constant__ norm::Row<norm::Problem> p) {
  norm::whole_rows<true>(p);
}
#endif
