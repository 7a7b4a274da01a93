// Elements taken together: lanes run along a row, or each along a column. Sums go on in fp64 after 64 additions, so that long ones
// keep their digits; maxima carry a number that is NaN once an element is.
#pragma once

#include "kernels/backends/cpu/load.h"
#include "kernels/tensor/reduce/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kFlush = 64;  // additions in fp32

// 0, or NaN where v is.
TILEKILN_INLINE vf not_a_number(vf v, vf so_far) { return fma(min(broadcast(3.40282347e38f), abs(v)), zero(), so_far); }

template <tensor::Reduction kDo> constexpr float nothing() {
  return kDo == tensor::Reduction::max ? -__builtin_inff() : kDo == tensor::Reduction::min ? __builtin_inff() : 0.f;
}
template <tensor::Reduction kDo> TILEKILN_INLINE vf taken(vf so_far, vf v) {
  if constexpr (kDo == tensor::Reduction::max) return max(so_far, v);
  if constexpr (kDo == tensor::Reduction::min) return min(so_far, v);
  return add(so_far, v);
}
constexpr bool kSums(tensor::Reduction one) { return one == tensor::Reduction::sum || one == tensor::Reduction::mean; }

// The places of the dimensions that are reduced, but for the lanes' own, one after the other.
struct Places {
  const tensor::Reduce& a;
  long long at[tensor::kReduced] = {}, x = 0;
  TILEKILN_INLINE bool next() {
    for (int i = tensor::kReduced - 1; i >= 0; --i) {
      x += a.reduced_x[i];
      if (++at[i] < a.reduced[i]) return true;
      at[i] = 0;
      x -= a.reduced[i] * a.reduced_x[i];
    }
    return false;
  }
};

struct Output { long long x, y; };
TILEKILN_INLINE Output output(const tensor::Reduce& a, long long number) {
  Output found = {0, 0};
  for (int i = tensor::kKept - 1; i >= 0 && number > 0; --i) {
    const long long at = number % a.kept[i];
    number /= a.kept[i];
    found.x += at * a.kept_x[i];
    found.y += at * a.kept_y[i];
  }
  return found;
}

// Element i of a row is lane i of a vector.
template <class T> TILEKILN_INLINE vf row_at(const T* x, long long step, long long j, long long length) {
  const int left = length - j < kLanes ? int(length - j) : kLanes;
  if (step == 1) return widen_some(x + j, left);
  T row[kLanes] = {};
  for (int i = 0; i < left; ++i) row[i] = x[(j + i) * step];
  return widen(row);
}

// One lane of numbers that stand for a row, at its end.
template <tensor::Reduction kDo> TILEKILN_INLINE double across(vf a) {
  if constexpr (kSums(kDo)) return double(total(a));
  if constexpr (kDo == tensor::Reduction::max) return double(highest(a));
  return -double(highest(sub(zero(), a)));
}

template <class T, tensor::Reduction kDo> void row(const tensor::Reduce& a, long long number) {
  const Output at = output(a, number);
  const T* x = (const T*)a.x + at.x;
  double sum = double(nothing<kDo>());
  vf bad = zero();
  bool any = a.length > 0;
  for (int i = 0; i < tensor::kReduced; ++i) any = any && a.reduced[i] > 0;
  Places place = {a};
  if (any) do {
      const T* p = x + place.x;
      for (long long j = 0; j < a.length;) {
        const vf start = broadcast(nothing<kDo>());
        vf part[4] = {start, start, start, start};
        const long long end = a.length - j < 4 * kFlush * kLanes ? a.length : j + 4 * kFlush * kLanes;
        for (; j + 4 * kLanes <= end && a.step == 1; j += 4 * kLanes) TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) {
            const vf v = widen(p + j + i * kLanes);
            part[i] = taken<kDo>(part[i], v);
            if constexpr (!kSums(kDo)) bad = not_a_number(v, bad);
          }
        for (; j < end; j += kLanes) {
          const long long left = a.length - j;
          vf v = row_at(p, a.step, j, a.length);
          if (left < kLanes) v = select(lane_bits((1u << left) - 1), v, start);
          part[0] = taken<kDo>(part[0], v);
          if constexpr (!kSums(kDo)) bad = not_a_number(v, bad);
        }
        const double one = across<kDo>(taken<kDo>(taken<kDo>(part[0], part[1]), taken<kDo>(part[2], part[3])));
        if constexpr (kSums(kDo))
          sum += one;
        else
          sum = (kDo == tensor::Reduction::max) == (one > sum) ? one : sum;
      }
    } while (place.next());
  const float result = float(sum * a.scale) + (kSums(kDo) ? 0 : total(bad));
  narrow_some((T*)a.y + at.y, broadcast(result), 1);
}

template <class T, tensor::Reduction kDo> void columns(const tensor::Reduce& a, long long number) {
  constexpr int kVectors = tensor::kColumns / kLanes;
  const long long across = (a.length + tensor::kColumns - 1) / tensor::kColumns,
                  first = number % across * tensor::kColumns;
  const Output at = output(a, number / across);
  const T* x = (const T*)a.x + at.x + first;
  const int count = a.length - first < tensor::kColumns ? int(a.length - first) : tensor::kColumns;
  double sums[tensor::kColumns] = {};
  alignas(64) float part[tensor::kColumns];
  vf so_far[kVectors], bad[kVectors];
  for (int i = 0; i < kVectors; ++i) so_far[i] = broadcast(nothing<kDo>()), bad[i] = zero();
  const auto flush = [&] {
    for (int i = 0; i < kVectors; ++i) {
      store(part + i * kLanes, kSums(kDo) ? so_far[i] : add(so_far[i], bad[i]));
      if constexpr (kSums(kDo)) so_far[i] = zero();
    }
    for (int i = 0; i < count; ++i) sums[i] = kSums(kDo) ? sums[i] + double(part[i]) : double(part[i]);
  };
  bool any = true;
  for (int i = 0; i < tensor::kReduced; ++i) any = any && a.reduced[i] > 0;
  Places place = {a};
  int added = 0;
  const auto add_row = [&](int i, vf v) __attribute__((always_inline)) {
    so_far[i] = taken<kDo>(so_far[i], v);
    if constexpr (!kSums(kDo)) bad[i] = not_a_number(v, bad[i]);
  };
  if (any) do {
      const T* p = x + place.x;
      if (count == tensor::kColumns) {
        TILEKILN_UNROLL(16) for (int i = 0; i < kVectors; ++i) add_row(i, widen(p + i * kLanes));
      } else {
        for (int i = 0; i * kLanes < count; ++i) {
          const int left = count - i * kLanes;
          add_row(i, widen_some(p + i * kLanes, left < kLanes ? left : kLanes));
        }
      }
      if (kSums(kDo) && ++added == kFlush) flush(), added = 0;
    } while (place.next());
  flush();
  for (int i = 0; i < count; ++i)
    narrow_some((T*)a.y + at.y + (first + i) * a.column_y, broadcast(float(sums[i] * a.scale)), 1);
}

template <class T> void reduce(const tensor::Reduce& a, long long first, long long last) {
  const auto each = [&](auto row_of, auto columns_of) {
    for (long long unit = first; unit < last; ++unit)
      a.way == int(tensor::ReduceWay::rows) ? row_of(a, unit) : columns_of(a, unit);
  };
  switch (tensor::Reduction(a.operation)) {
    case tensor::Reduction::sum:
    case tensor::Reduction::mean: return each(row<T, tensor::Reduction::sum>, columns<T, tensor::Reduction::sum>);
    case tensor::Reduction::max: return each(row<T, tensor::Reduction::max>, columns<T, tensor::Reduction::max>);
    case tensor::Reduction::min: return each(row<T, tensor::Reduction::min>, columns<T, tensor::Reduction::min>);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
