// Rows normalised, and quantised: rmsnorm2d, layernorm2d, smoothquant and the two norms that quantise.
//
// Statistics are of the row as it is held, so deviations are from the mean itself. Everything is fp32, in one order.
// -D: HELD, STAGES, NORM (0 none, 1 layer, 2 rms), QUANTISED; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/staged.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::Problem;

constexpr float kLeast = 0x1p-100f;  // what is less everywhere counts as 0: its scale would leave fp32's normal numbers

#if __CUDA_ARCH__ < 890
// A finite number as e4m3, rounded to nearest even; beyond 448 it is 448. sm_89 has an instruction for it.
TILEKILN_DEVICE uint32_t e4m3(float x) {
  const uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
  const float magnitude = fminf(__uint_as_float(bits & 0x7fffffffu), 448.f);
  if (magnitude < 0x1p-6f)  // steps of 2^-9: the last place of numbers from 2^14 on
    return sign | (__float_as_uint(magnitude + 0x1p14f) - __float_as_uint(0x1p14f));
  const uint32_t whole = __float_as_uint(magnitude);
  return sign | (((whole + 0x7ffffu + (whole >> 20 & 1)) >> 20) - (120 << 3));
}
#endif

// Four bytes of numbers of at most `largest`: int8 by the low byte of a sum whose last place is 1, rounded to nearest even.
TILEKILN_DEVICE uint32_t quantised(const float* v, float by, bool fp8) {
  if (fp8) {
#if __CUDA_ARCH__ < 890
    uint32_t four = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) four |= e4m3(v[i] * by) << (8 * i);
    return four;
#else
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1] * by), "f"(v[0] * by));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3] * by), "f"(v[2] * by));
    return uint32_t(low) | uint32_t(high) << 16;
#endif
  }
  uint32_t bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(fmaf(v[i], by, 12582912.f));
  return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
}

// kWide elements of a byte, as many as there are.
TILEKILN_DEVICE void store_bytes(void* to, const uint32_t (&words)[kWide / 4], int count) {
  if (count >= kWide && reinterpret_cast<uintptr_t>(to) % kWide == 0) {
#ifdef TILEKILN_FP32
    *static_cast<uint32_t*>(to) = words[0];
#else
    *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
#endif
    return;
  }
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    if (i < count) static_cast<uint8_t*>(to)[i] = uint8_t(words[i / 4] >> (i % 4 * 8));
  }
}

// The scale of a quantised row. A row that is 0 everywhere, or has a NaN, gets bytes of 0 and a scale of 0, or NaN.
struct Scale {
  float by, scale;
  bool some;
};
TILEKILN_DEVICE Scale scale_of(float most, bool fp8) {
  const float largest = fp8 ? 448.f : 127.f;
  const bool finite = most < kInfinity, some = finite && most >= kLeast;
  return {some ? largest / most : 0.f, some ? most / largest : finite ? 0.f : __uint_as_float(0x7fc00000u), some};
}

// A row whose largest magnitude follows from that of x gamma smooth_scale: that and the sum of squares are taken in one pass.
template <class Held> TILEKILN_DEVICE void quantise_at_once(const Problem& a, const Team& team, long long m, bool wide,
                                                            Held& row, bool& written, float (&shared)[2][32]) {
  const auto scaled = [&](uint4 vector, int j, int bytes, float (&v)[kWide]) {
    widen(vector, v);
    if constexpr (NORM == 2) {
      float gamma[kWide];
      widen(load_vector(static_cast<const Element*>(a.gamma) + j, bytes, wide), gamma);
#pragma unroll
      for (int i = 0; i < kWide; ++i) v[i] *= gamma[i];
    }
    if (a.smooth_scale == nullptr) return;
#pragma unroll
    for (int i = 0; i < kWide; ++i) v[i] *= i * int(sizeof(Element)) < bytes ? a.smooth_scale[j + i] : 0.f;
  };
  float squares = 0, most = 0;
  row.each([&](uint4 vector, int j, int bytes) {
    float v[kWide];
    if constexpr (NORM == 2) {
      widen(vector, v);
#pragma unroll
      for (int i = 0; i < kWide; ++i) squares = fmaf(v[i], v[i], squares);
    }
    scaled(vector, j, bytes, v);
#pragma unroll
    for (int i = 0; i < kWide; ++i) most = larger_or_nan(most, fabsf(v[i]));
  });
  written = true;
  join_both(team, squares, most, shared, [](float one, float other) { return one + other; }, larger_or_nan);
  const float inverse = NORM == 2 ? 1 / sqrtf(squares / float(a.columns) + a.epsilon) : 1.f;
  const Scale to = scale_of(most * inverse, a.y_dtype != 0);
  const float by = to.by * inverse;
  if (team.lane == 0) {
    a.y_scale[m] = to.scale;
    if (NORM == 2 && a.inverse) a.inverse[m] = inverse;
  }
  uint8_t* const y = static_cast<uint8_t*>(a.y) + m * a.y_row;
  row.each([&](uint4 vector, int j, int bytes) {
    uint32_t words[kWide / 4] = {};
    if (to.some) {
      float v[kWide];
      scaled(vector, j, bytes, v);
#pragma unroll
      for (int i = 0; i < kWide / 4; ++i) words[i] = quantised(v + 4 * i, by, a.y_dtype != 0);
    }
    store_bytes(y + j, words, bytes / int(sizeof(Element)));
  });
}

template <bool kStaged> TILEKILN_DEVICE void normalise(const Row<Problem>& p) {
  __shared__ float shared[3][32];
#if QUANTISED
  __shared__ float both[2][32];
#endif
  const Problem& a = p.problem;
  const Team team = team_of(!kStaged && p.warps);
  const bool wide = kStaged || p.wide;
  Staged staged;
  if constexpr (kStaged) stage(staged, team, a.x, a.x_row, a.rows, a.columns, p.stages);
  for (long long m = team.row; m < a.rows; m += team.step) {
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
    const Element* const residual =
        !kStaged && a.residual ? static_cast<const Element*>(a.residual) + m * a.residual_row : nullptr;
    Element* const stored =
        !kStaged && a.residual_out ? static_cast<Element*>(a.residual_out) + m * a.residual_out_row : nullptr;
    const auto added = [&](int j) {
      const int bytes = kStaged ? 16 : (a.columns - j) * int(sizeof(Element));
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
      if (stored != nullptr)
        store_vector(stored + j, vector, kStaged ? 16 : (a.columns - j) * int(sizeof(Element)), wide);
      return vector;
    };
    // Of columns beyond those held: residual_out, which may be residual, is written in the first pass over them.
    bool written = false;
    const auto again = [&](int j) {
      if (stored == nullptr) return added(j);
      return written ? load_vector(stored + j, (a.columns - j) * int(sizeof(Element)), wide) : first(j);
    };
    auto&& row = [&]() -> decltype(auto) {
      if constexpr (kStaged) {
        staged.begin();
        return (staged);
      } else {
        return held(team, a.columns, first, again);
      }
    }();
#if QUANTISED
    if (NORM == 0 || (NORM == 2 && a.rounding == 0 && a.unquantised == nullptr)) {
      quantise_at_once(a, team, m, wide, row, written, both);
      if (!team.warp && m + team.step < a.rows) __syncthreads();  // shared is the next row's
      continue;
    }
#endif
    float mean = 0, inverse = 1;
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
      float squares = 0;
      row.each([&](uint4 vector, int, int bytes) {
        float v[kWide];
        widen(vector, v);
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          const float d = NORM == 2 ? v[i] : i * int(sizeof(Element)) < bytes ? v[i] - mean : 0;
          squares = fmaf(d, d, squares);
        }
      });
      written = true;
      inverse = 1 / sqrtf(sum_of(team, squares, shared[1]) / float(a.columns) + a.epsilon);
      if (team.lane == 0) {
        if (NORM == 1 && a.mean) a.mean[m] = mean;
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
        v[i] = NORM == 1 ? fmaf((v[i] - mean) * inverse, gamma[i], beta[i]) : v[i] * inverse * gamma[i];
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
    top = joined(team, top, reinterpret_cast<unsigned*>(shared[2]),
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

}  // namespace tilekiln::cuda::norm

using namespace tilekiln::cuda;

extern "C" __constant__ norm::Build rows_build = {HELD, STAGES, kDtype, 1024};

extern "C" __global__ void __launch_bounds__(1024) rows(const __grid_constant__ norm::Row<norm::Problem> p) {
  norm::normalise<false>(p);
}
#if NORM == 0
extern "C" __global__ void __launch_bounds__(norm::kStagedThreads, 1)
    rows_staged(const __grid_constant__ norm::Row<norm::Problem> p) {
  norm::normalise<true>(p);
}
#endif
