// SPDX-License-Identifier: MIT
// The rows engine of rotary for one target: a row is a token, whose heads are turned by the same angles. Of each pair
//   (a, b) -> (a cos - b sin, a sin + b cos)
#include "kernels/backends/cpu/twos.h"
#include "kernels/norm/rotary/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// The position of a row on an axis, or -1 where the tables have none.
TILEKILN_INLINE long long position_of(const norm::Rotary& a, long long batch, long long token, int axis = 0) {
  const long long i = axis * a.positions_axis + batch * a.positions_row + token;
  long long at = !a.positions            ? token
                 : a.position_bytes == 8 ? ((const long long*)a.positions)[i]
                                         : ((const int*)a.positions)[i];
  return !__builtin_add_overflow(at, a.start, &at) && at >= 0 && at < a.table_rows ? at : -1;
}

TILEKILN_INLINE Two turn(vf a, vf b, vf cos, vf sin) {
  return {sub(mul(a, cos), mul(b, sin)), fma(a, sin, mul(b, cos))};
}

// kStep pairs at a time: put(i, at(i, how many), how many). The last ones may lie over those before them, and are then made first, for
// y may be x. In order else: rows from memory take 1.3 times as long out of it.
template <int kStep, class At, class Put> TILEKILN_INLINE void steps(int half, At&& at, Put&& put) {
  const int whole = half / kStep * kStep, last = half < kStep ? 0 : half - kStep;
  const auto in_order = [&] {
    for (int i = 0; i < whole; i += kStep) put(i, at(i, kStep), kStep);
  };
  if (whole == half) return in_order();
  const auto made = at(last, half - last);
  in_order();
  put(last, made, half - last);
}

// Pairs (i, i + apart).
template <class T, class C>
TILEKILN_INLINE void halves(const T* x, T* y, const C* cos, const C* sin, int half, long long apart, vf sign) {
  struct Turned { Two first, second; };
  const auto at = [&](int i, int left) __attribute__((always_inline)) {
    const Two a = widen_two<T>(x + i, left), b = widen_two<T>(x + apart + i, left);
    const Two c = widen_two<T>(cos + i, left), s = mul(widen_two<T>(sin + i, left), sign);
    return Turned{turn(a.a, b.a, c.a, s.a), turn(a.b, b.b, c.b, s.b)};
  };
  steps<kTwo>(half, at, [&](int i, Turned of, int left) __attribute__((always_inline)) {
    narrow_two<T>(y + i, {of.first.a, of.second.a}, left);
    narrow_two<T>(y + apart + i, {of.first.b, of.second.b}, left);
  });
}

// Pairs (2i, 2i + 1).
template <class T, class C>
TILEKILN_INLINE void neighbours(const T* x, T* y, const C* cos, const C* sin, int half, vf sign) {
  const auto at = [&](int i, int left) __attribute__((always_inline)) {
    const Two pairs = widen_pairs(x + 2 * i, 2 * left);
    return turn(pairs.a, pairs.b, widen_some(cos + i, left), mul(widen_some(sin + i, left), sign));
  };
  steps<kLanes>(half, at,
                [&](int i, Two of, int left) __attribute__((always_inline)) { narrow_pairs(y + 2 * i, of, 2 * left); });
}

TILEKILN_INLINE bool is_placed(const norm::Rotary& a, long long batch, long long token) {
  bool placed = true;
  for (int axis = 0; axis < a.axis_count; ++axis) placed = placed && position_of(a, batch, token, axis) >= 0;
  return placed;
}
TILEKILN_INLINE bool are_axes(const norm::Rotary& a) {
  bool right = true;
  for (int i = 0; i < a.half; ++i) right = right && a.axes[i] >= 0 && a.axes[i] < a.axis_count;
  return right;
}

// A token whose pairs have positions of several axes: their angles are gathered, kPairs at a time.
constexpr int kPairs = 256;
template <class T, class C>
void turn_by_axes(const norm::Rotary& a, const T* x, T* y, long long batch, long long token, vf sign) {
  alignas(64) C cos[kPairs], sin[kPairs];
  for (int from = 0; from < a.half; from += kPairs) {
    const int many = a.half - from < kPairs ? a.half - from : kPairs;
    for (int i = 0; i < many; ++i) {
      const long long at = position_of(a, batch, token, a.axes[from + i]);
      cos[i] = ((const C*)a.cos)[at * a.cos_row + from + i], sin[i] = ((const C*)a.sin)[at * a.sin_row + from + i];
    }
    for (int h = 0; h < a.heads; ++h) {
      const T* of = x + h * a.x_head;
      T* to = y + h * a.y_head;
      if (a.interleaved)
        neighbours(of + 2 * from, to + 2 * from, cos, sin, many, sign);
      else
        halves(of + from, to + from, cos, sin, many, a.half, sign);
    }
  }
}

template <class T, class C> void turn_rows(const norm::Rotary& a, long long first, long long last) {
  const bool by_axes = a.axes && are_axes(a);
  const vf sign = broadcast(a.conjugate ? -1 : 1);
  for (long long row = first; row < last; ++row) {
    const long long batch = row / a.tokens, token = row % a.tokens;
    const T* x = (const T*)a.x + batch * a.x_batch + token * a.x_token;
    T* y = (T*)a.y + batch * a.y_batch + token * a.y_token;
    const bool placed = by_axes && is_placed(a, batch, token);
    const long long at = a.axes ? (placed ? 0 : -1) : position_of(a, batch, token);
    const int turned = at < 0 ? 0 : 2 * a.half;
    if (placed) turn_by_axes<T, C>(a, x, y, batch, token, sign);
    const C *cos = (const C*)a.cos + at * a.cos_row, *sin = (const C*)a.sin + at * a.sin_row;
    for (int h = 0; h < a.heads; ++h, x += a.x_head, y += a.y_head) {
      if (turned && !placed && a.interleaved)
        neighbours(x, y, cos, sin, a.half, sign);
      else if (turned && !placed)
        halves(x, y, cos, sin, a.half, a.half, sign);
      if (x != y && turned < a.columns) __builtin_memcpy(y + turned, x + turned, (a.columns - turned) * sizeof(T));
    }
  }
}

// Functions by the axis tables: fp32, or the type of x.
template <class T> void rows(const norm::Rotary& a, long long first, long long last) {
  (a.tables ? turn_rows<T, T> : turn_rows<T, float>)(a, first, last);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _rotary_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::RotaryEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
