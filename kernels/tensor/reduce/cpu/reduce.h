// SPDX-License-Identifier: MIT
// Elements taken together: lanes run along a row, or each along a column. Sums go on in fp64 after 64 additions, so that long ones
// keep their digits; maxima carry the largest magnitude beside them, which is NaN once an element is.
#pragma once

#include "kernels/backends/cpu/twos.h"
#include "kernels/tensor/reduce/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kFlush = 64;  // additions in fp32

template <tensor::Reduction kDo> constexpr float nothing() {
  return kDo == tensor::Reduction::max ? -__builtin_inff() : kDo == tensor::Reduction::min ? __builtin_inff() : 0.f;
}
template <tensor::Reduction kDo> TILEKILN_INLINE vf taken(vf so_far, vf v) {
  if constexpr (kDo == tensor::Reduction::max) return max(so_far, v);
  if constexpr (kDo == tensor::Reduction::min) return min(so_far, v);
  return add(so_far, v);
}
constexpr bool kSums(tensor::Reduction one) { return one == tensor::Reduction::sum || one == tensor::Reduction::mean; }

// Number of elements in the dimensions that are reduced, but for the lanes' own.
TILEKILN_INLINE long long reduced_places(const tensor::Reduce& a) {
  long long places = 1;
  for (const long long length : a.reduced) places *= length;
  return places;
}
// The places of those, one after the other.
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
    if (a.kept[i] == 1) continue;  // most of them: a division each would take longer than a row of 256
    const bool last = number < a.kept[i];
    const long long at = last ? number : number % a.kept[i];
    number = last ? 0 : number / a.kept[i];
    found.x += at * a.kept_x[i];
    found.y += at * a.kept_y[i];
  }
  return found;
}

// Element i of a row is lane i of a vector.
template <class T> TILEKILN_INLINE vf row_at(const T* x, long long step, long long j, long long length) {
  const int left = length - j < kLanes ? int(length - j) : kLanes;
  if (step == 1 && left == kLanes) return widen(x + j);
  if (step == 1) {
    Part<T> part;
    part.read(x + j, left);
    return widen(part.row);
  }
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

template <class T, tensor::Reduction kDo> void row(const tensor::Reduce& a, long long number, long long places) {
  const Output at = output(a, number);
  const T* x = (const T*)a.x + at.x;
  double sum = double(nothing<kDo>());
  vf bad = zero();
  Places place = {a};
  if (a.length > 0 && places > 0) do {
      const T* p = x + place.x;
      for (long long j = 0; j < a.length;) {
        const vf start = broadcast(nothing<kDo>());
        Two part[2] = {both_of(start), both_of(start)};
        const long long end = a.length - j < 4 * kFlush * kLanes ? a.length : j + 4 * kFlush * kLanes;
        for (; j + 2 * kTwo <= end && a.step == 1; j += 2 * kTwo) TILEKILN_UNROLL(2) for (int i = 0; i < 2; ++i) {
            const Two v = widen_two<T>(p + j + i * kTwo);
            part[i] = {taken<kDo>(part[i].a, v.a), taken<kDo>(part[i].b, v.b)};
            if constexpr (!kSums(kDo)) bad = max_magnitude(max_magnitude(bad, v.a), v.b);
          }
        for (; j < end; j += kLanes) {
          const long long left = a.length - j;
          vf v = row_at(p, a.step, j, a.length);
          if (left < kLanes) v = select(lane_bits((1u << left) - 1), v, start);
          part[0].a = taken<kDo>(part[0].a, v);
          if constexpr (!kSums(kDo)) bad = max_magnitude(bad, v);
        }
        const vf two[2] = {taken<kDo>(part[0].a, part[0].b), taken<kDo>(part[1].a, part[1].b)};
        const double one = across<kDo>(taken<kDo>(two[0], two[1]));
        if constexpr (kSums(kDo))
          sum += one;
        else
          sum = (kDo == tensor::Reduction::max) == (one > sum) ? one : sum;
      }
    } while (places > 1 && place.next());
  float result = float(sum * a.scale);
  if (!kSums(kDo) && any_above(bad, broadcast(__builtin_inff()))) result = __builtin_nanf("");
  narrow_some((T*)a.y + at.y, broadcast(result), 1);
}

// Sums of short rows whose outputs are of one dimension, kLanes rows at a time: their lanes are added across all of them at once.
constexpr int kShort = 768;  // elements: no lane of any target takes more than kFlush
template <class T> void short_sums(const tensor::Reduce& a, long long first, long long last) {
  const T* x = (const T*)a.x + first * a.kept_x[0];
  T* y = (T*)a.y + first * a.kept_y[0];
  const int length = int(a.length);
  for (long long left = last - first; left > 0; left -= kLanes, y += kLanes * a.kept_y[0]) {
    vf rows[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      rows[r] = zero();
      if (r >= left) continue;
      Two part[2] = {both_of(zero()), both_of(zero())};
      int j = 0;
      for (; j <= length - 2 * kTwo; j += 2 * kTwo)
        TILEKILN_UNROLL(2) for (int i = 0; i < 2; ++i) part[i] = add(part[i], widen_two<T>(x + j + i * kTwo));
      for (; j <= length - kLanes; j += kLanes) part[0].a = add(part[0].a, widen(x + j));
      // The rest by the row's last vector, without what has been added.
      if (const int rest = length - j; rest > 0 && j > 0)
        part[1].a = add(part[1].a, keep_if(lane_bits(~0u << (kLanes - rest)), widen(x + length - kLanes)));
      else if (rest > 0 && a.kept_x[0] == length && (left - r) * length >= kLanes)  // other rows follow
        part[1].a = keep_if(lane_bits((1u << rest) - 1), widen(x));
      else if (rest > 0)
        part[1].a = row_at(x, 1, 0, rest);
      const Two both = add(part[0], part[1]);
      rows[r] = add(both.a, both.b);
      x += a.kept_x[0];
    }
    alignas(64) float sums[kLanes];
    store(sums, totals(rows));
    for (float& one : sums) one = float(double(one) * a.scale);
    if (a.kept_y[0] == 1) {
      narrow_some(y, load(sums), int(left < kLanes ? left : kLanes));
      continue;
    }
    for (int r = 0; r < kLanes && r < left; ++r) narrow_some(y + r * a.kept_y[0], broadcast(sums[r]), 1);
  }
}

// Rows that are taken together into what a column has so far, one after the other: 1.1 to 1.4 times as fast as four. Rows whole pages
// apart lie in the same lines of L1, which has room for twelve.
constexpr int kTogether = 8;

template <class T, tensor::Reduction kDo> void columns(const tensor::Reduce& a, long long number, long long places) {
  const long long across = (a.length + a.column_block - 1) / a.column_block, first = number % across * a.column_block;
  const Output at = output(a, number / across);
  const T* x = (const T*)a.x + at.x + first;
  const int count = a.length - first < a.column_block ? int(a.length - first) : a.column_block;
  constexpr int kColumns = tensor::kColumnBytes / sizeof(T);
  alignas(64) float so_far[kColumns], bad[kSums(kDo) ? 1 : kColumns];
  alignas(64) double sums[kSums(kDo) ? kColumns : 1];
  const int whole = (count + kTwo - 1) / kTwo * kTwo;
  for (int i = 0; i < whole; ++i) {
    so_far[i] = nothing<kDo>();
    if constexpr (kSums(kDo))
      sums[i] = 0;
    else
      bad[i] = 0;
  }
  const auto flush = [&] {
    if constexpr (kSums(kDo))
      for (int i = 0; i < whole; ++i) sums[i] += double(so_far[i]), so_far[i] = 0;
  };
  const auto add_rows = [&](const T* const* rows, int many) __attribute__((always_inline)) {
    const auto add_at = [&](int j, int left) __attribute__((always_inline)) {
      Two all = {load(so_far + j), load(so_far + j + kLanes)}, wrong = both_of(zero());
      if constexpr (!kSums(kDo)) wrong = {load(bad + j), load(bad + j + kLanes)};
      TILEKILN_UNROLL(8) for (int r = 0; r < many; ++r) {
        const Two v = widen_two<T>(rows[r] + j, left);
        all = {taken<kDo>(all.a, v.a), taken<kDo>(all.b, v.b)};
        if constexpr (!kSums(kDo)) wrong = max_magnitude(wrong, v);
      }
      store(so_far + j, all.a);
      store(so_far + j + kLanes, all.b);
      if constexpr (!kSums(kDo)) {
        store(bad + j, wrong.a);
        store(bad + j + kLanes, wrong.b);
      }
    };
    int j = 0;
    for (; j <= count - kTwo; j += kTwo) add_at(j, kTwo);
    if (j < count) add_at(j, count - j);
  };
  Places place = {a};
  const T* rows[kTogether];
  int added = 0, waiting = 0;
  if (places > 0) do {
      rows[waiting++] = x + place.x;
      if (waiting < kTogether) continue;
      add_rows(rows, kTogether);
      waiting = 0;
      if ((added += kTogether) == kFlush) flush(), added = 0;
    } while (place.next());
  for (int r = 0; r < waiting; ++r) add_rows(rows + r, 1);
  flush();
  for (int i = 0; i < whole; ++i) {
    if constexpr (kSums(kDo))
      so_far[i] = float(sums[i] * a.scale);
    else
      so_far[i] = bad[i] == bad[i] ? so_far[i] : bad[i];
  }
  T* y = (T*)a.y + at.y + first * a.column_y;
  for (int i = 0; i < count; i += kTwo) {
    const Two two = {load(so_far + i), load(so_far + i + kLanes)};
    if (a.column_y == 1) {
      narrow_two<T>(y + i, two, count - i);
      continue;
    }
    T row[kTwo];
    narrow_two<T>(row, two);
    for (int j = 0; j < kTwo && i + j < count; ++j) y[(i + j) * a.column_y] = row[j];
  }
}

template <class T> void reduce(const tensor::Reduce& a, long long first, long long last) {
  const auto each = [&](auto row_of, auto columns_of) {
    const long long places = reduced_places(a);
    for (long long unit = first; unit < last; ++unit)
      a.way == int(tensor::ReduceWay::rows) ? row_of(a, unit, places) : columns_of(a, unit, places);
  };
  const bool rows_of_one =
      a.way == int(tensor::ReduceWay::rows) && a.step == 1 && a.kept[0] == a.outputs && reduced_places(a) == 1;
  switch (tensor::Reduction(a.operation)) {
    case tensor::Reduction::sum:
    case tensor::Reduction::mean:
      if (rows_of_one && a.length <= kShort) return short_sums<T>(a, first, last);
      return each(row<T, tensor::Reduction::sum>, columns<T, tensor::Reduction::sum>);
    case tensor::Reduction::max: return each(row<T, tensor::Reduction::max>, columns<T, tensor::Reduction::max>);
    case tensor::Reduction::min: return each(row<T, tensor::Reduction::min>, columns<T, tensor::Reduction::min>);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
