// SPDX-License-Identifier: MIT
// Rows normalised, and quantised: rmsnorm2d, layernorm2d, smoothquant and the two norms that quantise.
//
// Statistics are of the row as it is held, so deviations are from the mean itself. Everything is fp32, in one order.
// Emulated (functional), never run on AMD silicon. Compile time: TK_HELD, TK_NORM (0 none, 1 layer, 2 rms), TK_QUANTISED, TK_BF16, TK_FP32.
#include "kernels/norm/hip/rows.h"

using namespace tilekiln::hip;
using namespace tilekiln::hip::norm;

namespace {

[[maybe_unused]] constexpr float kLeast = 0x1p-100f;  // what is less everywhere counts as 0: its scale would leave fp32's normal numbers

[[maybe_unused]] TK_DEVICE u32 as_byte(float x, bool fp8) { return fp8 ? as_fp8(x) : u32(int(__builtin_rintf(x))) & 0xffu; }

}  // namespace

TK_ROWS(tilekiln::norm::Problem) {
  TK_SHARED float shared[3][32];
  const auto& a = p.problem;
  const Team team = team_of(p);
  const bool wide = p.wide;
  for (i64 m = team.first; m < a.rows; m += team.step) {
    const TK_GLOBAL Element* const x = global((const Element*)a.x) + m * a.x_row;
    const TK_GLOBAL Element* const residual = global((const Element*)a.residual) + m * a.residual_row;
    TK_GLOBAL Element* const stored = global((Element*)a.residual_out) + m * a.residual_out_row;
    const bool adds = a.residual != nullptr, stores = a.residual_out != nullptr;
    const auto added = [&](int j) TK_INLINE {
      const Vector vector = load_vector(x + j, a.columns - j, wide);
      if (!adds) return vector;
      return rounded(floats(vector) + floats(load_vector(residual + j, a.columns - j, wide)));
    };
    const auto first = [&](int j) TK_INLINE {
      const Vector vector = added(j);
      if (stores) store_vector(stored + j, vector, a.columns - j, wide);
      return vector;
    };
    // Columns beyond those held: residual_out, which may be residual, is written in the first pass over them.
    bool written = false;
    const auto again = [&](int j) TK_INLINE {
      if (!stores) return added(j);
      return written ? load_vector(stored + j, a.columns - j, wide) : first(j);
    };
    auto row = held(team, a.columns, first, again);
    [[maybe_unused]] float mean = 0, inverse = 1;
    if constexpr (TK_NORM == 1) {
      float sum = 0;
      row.each([&](Vector vector, int, int) TK_INLINE {
        const Floats v = floats(vector);
#pragma unroll
        for (int i = 0; i < kWide; ++i) sum += v[i];
      });
      written = true;
      mean = sum_of(team, sum, shared[0]) / float(a.columns);
    }
    if constexpr (TK_NORM != 0) {
      float squares = 0;
      row.each([&](Vector vector, int, int count) TK_INLINE {
        const Floats v = floats(vector);
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          const float d = i < count ? v[i] - mean : 0.f;
          squares = __builtin_fmaf(d, d, squares);
        }
      });
      written = true;
      inverse = 1.f / __builtin_sqrtf(sum_of(team, squares, shared[1]) / float(a.columns) + a.epsilon);
      if (team.thread == 0) {
        if (TK_NORM == 1 && a.mean) global(a.mean)[m] = mean;
        if (a.inverse) global(a.inverse)[m] = inverse;
      }
    }
    const auto normalised = [&](Vector vector, [[maybe_unused]] int j, [[maybe_unused]] int count) TK_INLINE {
      Floats v = floats(vector);
      if constexpr (TK_NORM != 0) {
        const Floats gamma = floats(load_vector(global((const Element*)a.gamma) + j, count, wide));
        if constexpr (TK_NORM == 1) {
          Floats beta = Floats(0);
          if (a.beta) beta = floats(load_vector(global((const Element*)a.beta) + j, count, wide));
          v = (v - mean) * inverse * gamma + beta;
        } else {
          v = v * inverse;
          if (a.rounding) v = floats(rounded(v));
          v = v * gamma;
        }
      }
      return v;
    };
    if constexpr (!TK_QUANTISED) {
      TK_GLOBAL Element* const y = global((Element*)a.y) + m * a.y_row;
      row.each([&](Vector vector, int j, int count) TK_INLINE {
        store_vector(y + j, rounded(normalised(vector, j, count)), count, wide);
      });
    } else {
      TK_GLOBAL unsigned char* const y = global((unsigned char*)a.y) + m * a.y_row;
      TK_GLOBAL Element* const plain = global((Element*)a.unquantised) + m * a.unquantised_row;
      const auto smoothed = [&](Floats v, int j, int count) TK_INLINE {
        if (a.smooth_scale) {
#pragma unroll
          for (int i = 0; i < kWide; ++i) v[i] *= i < count ? global(a.smooth_scale)[j + i] : 0.f;
        }
        return v;
      };
      u32 top = 0;  // the bits of the largest magnitude: those of NaN are above infinity's
      row.each([&](Vector vector, int j, int count) TK_INLINE {
        Floats v = normalised(vector, j, count);
        if (a.unquantised) store_vector(plain + j, rounded(v), count, wide);
        v = smoothed(v, j, count);
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          const u32 size = i < count ? bit_cast<u32>(float(v[i])) & 0x7fffffffu : 0u;
          top = size > top ? size : top;
        }
      });
      written = true;
      top = joined(team, top, (u32*)shared[2], [](u32 one, u32 other) TK_INLINE { return one > other ? one : other; });
      const float most = bit_cast<float>(top), largest = a.y_dtype ? 448.f : 127.f;
      const bool finite = top < 0x7f800000u, some = finite && most >= kLeast;
      const float by = some ? largest / most : 0.f;
      if (team.thread == 0) global(a.y_scale)[m] = some ? most / largest : finite ? 0.f : bit_cast<float>(0x7fc00000u);
      row.each([&](Vector vector, int j, int count) TK_INLINE {
        const Floats v = smoothed(normalised(vector, j, count), j, count) * by;
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          if (i < count) y[j + i] = (unsigned char)(some ? as_byte(v[i], a.y_dtype != 0) : 0u);
        }
      });
    }
    end_row(team);
  }
}
