// SPDX-License-Identifier: MIT
// Heads of tokens turned by the angles of their positions: of each pair (a, b) -> (a cos - b sin, a sin + b cos).
//
// A block has a token, whose position it looks up; its threads have a vector of pairs of a head each, or where vectors
// do not fit a pair. A thread reads what it turns before it writes, so that y may be x.
// -D: THREADS; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/backends/cuda/vectors.h"
#include "kernels/norm/rotary/cuda/params.h"

namespace tilekiln::cuda::rotary {

using Problem = tilekiln::norm::Rotary;

// Divides by 64 bits only where it must.
TILEKILN_DEVICE long long divided(long long a, long long b) {
  return (a | b) >> 32 ? a / b : uint32_t(a) / uint32_t(b);
}

// The row of the tables of a token, or -1 where they have none.
TILEKILN_DEVICE long long position_of(const Problem& a, long long batch, long long token) {
  long long at = token;
  if (a.positions != nullptr) {
    const long long i = batch * a.positions_row + token;
    at =
        a.position_bytes == 8 ? static_cast<const long long*>(a.positions)[i] : static_cast<const int*>(a.positions)[i];
    if (at < -a.start || at >= a.table_rows) return -1;
  }
  at += a.start;
  return at >= 0 && at < a.table_rows ? at : -1;
}

template <class T, int kCount> struct alignas(kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16) Pack { T at[kCount]; };
template <int kCount, class T> TILEKILN_DEVICE void load(const T* from, float (&v)[kCount]) {
  const auto packed = *reinterpret_cast<const Pack<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = value_of(packed.at[i]);
}

TILEKILN_DEVICE void turn(float& a, float& b, float cos, float sin) {
  const float first = a * cos - b * sin;
  b = fmaf(a, sin, b * cos), a = first;
}

// One unit of a head, by the tables' type.
template <class Table> TILEKILN_DEVICE void turn_unit(const Params& p, const Element* x, Element* y, long long at,
                                                      int unit) {
  const Problem& a = p.problem;
  const float sign = a.conjugate ? -1.f : 1.f;
  const Table* const cos = static_cast<const Table*>(a.cos) + at * a.cos_row;
  const Table* const sin = static_cast<const Table*>(a.sin) + at * a.sin_row;
  if (!p.wide) {
    const int one = a.interleaved ? 2 * unit : unit, other = a.interleaved ? one + 1 : unit + a.half;
    float v = value_of(x[one]), w = value_of(x[other]);
    turn(v, w, value_of(cos[unit]), sign * value_of(sin[unit]));
    y[one] = narrowed(v), y[other] = narrowed(w);
    return;
  }
  const int j = unit * kWide;
  if (a.interleaved) {
    constexpr int kPairs = kWide / 2;
    float v[kWide], c[kPairs], s[kPairs];
    widen(*reinterpret_cast<const uint4*>(x + j), v);
    load(cos + j / 2, c), load(sin + j / 2, s);
#pragma unroll
    for (int e = 0; e < kPairs; ++e) turn(v[2 * e], v[2 * e + 1], c[e], sign * s[e]);
    *reinterpret_cast<uint4*>(y + j) = narrow(v);
    return;
  }
  float v[kWide], w[kWide], c[kWide], s[kWide];
  widen(*reinterpret_cast<const uint4*>(x + j), v), widen(*reinterpret_cast<const uint4*>(x + a.half + j), w);
  load(cos + j, c), load(sin + j, s);
#pragma unroll
  for (int e = 0; e < kWide; ++e) turn(v[e], w[e], c[e], sign * s[e]);
  *reinterpret_cast<uint4*>(y + j) = narrow(v), *reinterpret_cast<uint4*>(y + a.half + j) = narrow(w);
}

TILEKILN_DEVICE void copy_unit(const Params& p, const Element* x, Element* y, int unit) {
  if (p.wide) {
    reinterpret_cast<uint4*>(y)[unit] = reinterpret_cast<const uint4*>(x)[unit];
  } else {
    y[unit] = x[unit];
  }
}

// A token whose vectors each thread takes of one place of several heads: the angles are asked for once, and with them
// the first heads.
template <class Table, bool kPairs> TILEKILN_DEVICE void turn_heads(const Params& p, long long row) {
  constexpr int kAtOnce = 4, kAngles = kPairs ? kWide / 2 : kWide;
  const Problem& a = p.problem;
  const int unit = int(threadIdx.x) % p.units, first = int(threadIdx.x) / p.units, j = unit * kWide;
  if (first >= p.together) return;
  const long long batch = divided(row, a.tokens), token = row - batch * a.tokens;
  const Element* x = static_cast<const Element*>(a.x) + batch * a.x_batch + token * a.x_token + j;
  Element* y = static_cast<Element*>(a.y) + batch * a.y_batch + token * a.y_token + j;
  uint4 one[kAtOnce], other[kAtOnce];
  const auto ask = [&](int head) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int h = head + i * p.together;
      one[i] = load_vector_once(h < a.heads, x + h * a.x_head);
      if (!kPairs) other[i] = load_vector_once(h < a.heads, x + h * a.x_head + a.half);
    }
  };
  ask(first);
  const long long at = position_of(a, batch, token);
  float c[kAngles], s[kAngles];
#pragma unroll
  for (int e = 0; e < kAngles; ++e) c[e] = 1, s[e] = 0;  // of a token without a position
  if (at >= 0) {
    const int angle = kPairs ? j / 2 : j;
    load(static_cast<const Table*>(a.cos) + at * a.cos_row + angle, c);
    load(static_cast<const Table*>(a.sin) + at * a.sin_row + angle, s);
    if (a.conjugate) {
#pragma unroll
      for (int e = 0; e < kAngles; ++e) s[e] = -s[e];
    }
  }
  for (int head = first; head < a.heads; head += kAtOnce * p.together) {
    if (head > first) ask(head);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int h = head + i * p.together;
      if (h >= a.heads) break;
      Element* const to = y + h * a.y_head;
      float v[kWide], w[kWide];
      widen(one[i], v);
      if constexpr (kPairs) {
#pragma unroll
        for (int e = 0; e < kAngles; ++e) turn(v[2 * e], v[2 * e + 1], c[e], s[e]);
      } else {
        widen(other[i], w);
#pragma unroll
        for (int e = 0; e < kAngles; ++e) turn(v[e], w[e], c[e], s[e]);
        *reinterpret_cast<uint4*>(to + a.half) = at >= 0 ? narrow(w) : other[i];
      }
      *reinterpret_cast<uint4*>(to) = at >= 0 ? narrow(v) : one[i];
    }
  }
}

template <class Table> TILEKILN_DEVICE void heads(const Params& p) {
  const Problem& a = p.problem;
  if (p.together > 0) {
    for (long long row = blockIdx.x; row < a.rows; row += gridDim.x)
      a.interleaved ? turn_heads<Table, true>(p, row) : turn_heads<Table, false>(p, row);
    return;
  }
  const int a_head = p.units + p.rest;
  const long long items = (long long)a.heads * a_head;
  for (long long row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const long long batch = divided(row, a.tokens), token = row - batch * a.tokens, at = position_of(a, batch, token);
    const Element* const x = static_cast<const Element*>(a.x) + batch * a.x_batch + token * a.x_token;
    Element* const y = static_cast<Element*>(a.y) + batch * a.y_batch + token * a.y_token;
    for (long long item = threadIdx.x; item < items; item += blockDim.x) {
      const long long head = divided(item, a_head);
      const int unit = int(item - head * a_head);
      const Element* const from = x + head * a.x_head;
      Element* const to = y + head * a.y_head;
      if (unit >= p.units) {
        if (from != to) copy_unit(p, from + 2 * a.half, to + 2 * a.half, unit - p.units);
      } else if (at >= 0) {
        turn_unit<Table>(p, from, to, at, unit);
      } else if (from != to && a.interleaved && !p.wide) {
        copy_unit(p, from, to, 2 * unit), copy_unit(p, from, to, 2 * unit + 1);
      } else if (from != to) {
        copy_unit(p, from, to, unit);
        if (!a.interleaved) copy_unit(p, from + a.half, to + a.half, unit);
      }
    }
  }
}

}  // namespace tilekiln::cuda::rotary

using namespace tilekiln::cuda;

extern "C" __constant__ rotary::Build rotary_build = {THREADS, kDtype, kEarly};

extern "C" __global__ void __launch_bounds__(THREADS) rotary_heads(const __grid_constant__ rotary::Params p) {
  begin_between_launches();
  p.problem.tables == 0 || kDtype == 0 ? rotary::heads<float>(p) : rotary::heads<Element>(p);
}
