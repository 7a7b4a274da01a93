// The rows engine of rmsnorm2d for one target. Lanes run along a row; four vectors of sums, added pairwise at its end.
#include "tilekiln/cpu/load.h"
#include "tilekiln/norm/rmsnorm2d_engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// f(column, which of four sums, how many lanes exist) for all vectors of a row.
template <class F> TILEKILN_INLINE void vectors(int columns, F&& f) {
  int j = 0;
  for (; j <= columns - 4 * kLanes; j += 4 * kLanes) {
    TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) f(j + i * kLanes, i, kLanes);
  }
  for (; j < columns; j += kLanes) f(j, 0, columns - j);
}

// As it is after having been stored.
template <class T> TILEKILN_INLINE vf rounded(vf a) {
  if constexpr (sizeof(T) == sizeof(float)) return a;
  T row[kLanes];
  narrow(row, a);
  return widen(row);
}

template <class T, bool kAdd> void normalise(const norm::RmsProblem& a, long long first, long long last) {
  const T* gamma = (const T*)a.gamma;
  for (long long m = first; m < last; ++m) {
    const T *x = (const T*)a.x + m * a.x_row, *residual = (const T*)a.residual + m * a.residual_row;
    T *y = (T*)a.y + m * a.y_row, *sum = kAdd && a.residual_out ? (T*)a.residual_out + m * a.residual_out_row : nullptr;
    const auto value = [&](int j, int left) __attribute__((always_inline)) {
      const vf v = widen_some(x + j, left);
      if constexpr (kAdd) return rounded<T>(add(v, widen_some(residual + j, left)));
      return v;
    };
    vf t[4] = {zero(), zero(), zero(), zero()};
    vectors(a.columns, [&](int j, int i, int left) __attribute__((always_inline)) {
      const vf v = value(j, left);
      t[i] = fma(v, v, t[i]);
      // Where y is x, x must stay until its second reading: only the sum is written here.
      if (kAdd && sum) narrow_some(sum + j, v, left);
    });
    const float mean = total(add(add(t[0], t[1]), add(t[2], t[3]))) / float(a.columns);
    const float inverse = 1 / __builtin_sqrtf(mean + a.epsilon);
    if (a.inv_rms) a.inv_rms[m] = inverse;
    const vf by = broadcast(inverse);
    const auto scaled = [&](int j, vf v, int left) __attribute__((always_inline)) {
      narrow_some(y + j, mul(mul(v, by), widen_some(gamma + j, left)), left);
    };
    // The sum is read where it was stored: residual may be that memory.
    if (kAdd && sum) {
      vectors(a.columns,
              [&](int j, int, int left) __attribute__((always_inline)) { scaled(j, widen_some(sum + j, left), left); });
    } else {
      vectors(a.columns, [&](int j, int, int left) __attribute__((always_inline)) { scaled(j, value(j, left), left); });
    }
  }
}

template <class T> void rows(const norm::RmsProblem& a, long long first, long long last) {
  a.residual ? normalise<T, true>(a, first, last) : normalise<T, false>(a, first, last);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _rmsnorm2d_rows)

// By dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::RmsEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
