// The rows engine of rotary for one target: a row is a token, whose heads are turned by the same angles. Of each pair
//   (a, b) -> (a cos - b sin, a sin + b cos)
#include "kernels/backends/cpu/twos.h"
#include "kernels/norm/rotary/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// The position of a row, or -1 where the tables have none.
TILEKILN_INLINE long long position_of(const norm::Rotary& a, long long batch, long long token) {
  long long at = token;
  if (a.positions) {
    const long long i = batch * a.positions_row + token;
    at = a.position_bytes == 8 ? ((const long long*)a.positions)[i] : ((const int*)a.positions)[i];
    if (at < -a.start || at >= a.table_rows) return -1;
  }
  at += a.start;
  return at >= 0 && at < a.table_rows ? at : -1;
}

struct Turned { Two a, b; };
TILEKILN_INLINE Turned turn(Two a, Two b, Two cos, Two sin) {
  const auto less = [](vf x, vf y, vf z, vf w) __attribute__((always_inline)) { return sub(mul(x, y), mul(z, w)); };
  return {{less(a.a, cos.a, b.a, sin.a), less(a.b, cos.b, b.b, sin.b)}, fma(a, sin, mul(b, cos))};
}

// Pairs (i, i + half).
template <class T, class C>
TILEKILN_INLINE void halves(const T* x, T* y, const C* cos, const C* sin, int half, vf sign) {
  for (int j = 0; j < half; j += kTwo) {
    const int left = half - j;
    const Turned made = turn(widen_two<T>(x + j, left), widen_two<T>(x + half + j, left), widen_two<T>(cos + j, left),
                             mul(widen_two<T>(sin + j, left), sign));
    narrow_two<T>(y + j, made.a, left);
    narrow_two<T>(y + half + j, made.b, left);
  }
}

// Their even elements, and their odd ones.
template <class T> TILEKILN_INLINE Two split_pairs(const T* p) {
  if constexpr (kEvenOdd<T>) return widen_two<T>(p);
  float wide[kTwo];
  store_unaligned(wide, widen(p)), store_unaligned(wide + kLanes, widen(p + kLanes));
  Two of;
  even_odd(wide, of.a, of.b);
  return of;
}
template <class T> TILEKILN_INLINE void join_pairs(T* p, Two of) {
  if constexpr (kEvenOdd<T>) return narrow_two<T>(p, of);
  float even[kLanes], odd[kLanes], wide[kTwo];
  store_unaligned(even, of.a), store_unaligned(odd, of.b);
  for (int k = 0; k < kLanes; ++k) wide[2 * k] = even[k], wide[2 * k + 1] = odd[k];
  narrow(p, load_unaligned(wide)), narrow(p + kLanes, load_unaligned(wide + kLanes));
}

// Pairs (2i, 2i + 1), kLanes of them at a time; all are read before any is written.
template <class T, class C>
TILEKILN_INLINE void neighbours(const T* x, T* y, const C* cos, const C* sin, int half, vf sign) {
  const auto made = [&](const T* pairs, const C* cosines, const C* sines) __attribute__((always_inline)) {
    const Two v = split_pairs(pairs);
    const vf c = widen(cosines), s = mul(widen(sines), sign);
    return Two{sub(mul(v.a, c), mul(v.b, s)), fma(v.a, s, mul(v.b, c))};
  };
  int i = 0;
  for (; i <= half - kLanes; i += kLanes) join_pairs(y + 2 * i, made(x + 2 * i, cos + i, sin + i));
  if (i == half) return;
  const int left = half - i;
  T pairs[kTwo] = {};
  C cosines[kLanes] = {}, sines[kLanes] = {};
  __builtin_memcpy(pairs, x + 2 * i, 2 * left * sizeof(T));
  __builtin_memcpy(cosines, cos + i, left * sizeof(C));
  __builtin_memcpy(sines, sin + i, left * sizeof(C));
  join_pairs(pairs, made(pairs, cosines, sines));
  __builtin_memcpy(y + 2 * i, pairs, 2 * left * sizeof(T));
}

template <class T, class C> void turn_rows(const norm::Rotary& a, long long first, long long last) {
  const vf sign = broadcast(a.conjugate ? -1 : 1);
  for (long long row = first; row < last; ++row) {
    const long long batch = row / a.tokens, token = row % a.tokens;
    const T* x = (const T*)a.x + batch * a.x_batch + token * a.x_token;
    T* y = (T*)a.y + batch * a.y_batch + token * a.y_token;
    const long long at = position_of(a, batch, token);
    const int turned = at < 0 ? 0 : 2 * a.half;
    const C *cos = (const C*)a.cos + at * a.cos_row, *sin = (const C*)a.sin + at * a.sin_row;
    for (int h = 0; h < a.heads; ++h, x += a.x_head, y += a.y_head) {
      if (turned && a.interleaved)
        neighbours(x, y, cos, sin, a.half, sign);
      else if (turned)
        halves(x, y, cos, sin, a.half, sign);
      if (x != y && turned < a.columns) __builtin_memcpy(y + turned, x + turned, (a.columns - turned) * sizeof(T));
    }
  }
}

// By the axis tables: fp32, or the type of x.
template <class T> void rows(const norm::Rotary& a, long long first, long long last) {
  (a.tables ? turn_rows<T, T> : turn_rows<T, float>)(a, first, last);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _rotary_rows)

// By dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::RotaryEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
