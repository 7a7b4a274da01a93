// SPDX-License-Identifier: MIT
// A square tile of elements of 1, 2, 4 or 8 bytes, turned in registers.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/backends/target.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// A row of a tile: one register of 16 bytes; of 64 with AVX-512, 32 for 2 bytes, where turning is one instruction a row and step.
template <class E> constexpr int tile_side() {
#if defined(__AVX512BW__)
  return sizeof(E) == 8 ? 8 : 16;
#else
  return 16 / sizeof(E);
#endif
}

template <int... I> struct Indices {};
template <int N, int... I> struct Counted : Counted<N - 1, N - 1, I...> {};
template <int... I> struct Counted<0, I...> { using of = Indices<I...>; };

// a0 b0 a1 b1 ... of the first halves of two vectors, or of the second ones.
template <int kFrom, class V, int... I> TILEKILN_INLINE V interleaved(V a, V b, Indices<I...>) {
  return __builtin_shufflevector(a, b, (kFrom + I / 2 + I % 2 * int(sizeof...(I)))...);
}

// Interleaving row i with row i + N/2, log2(N) times over, turns N rows of N. interleave(a, b, half).
template <int I> struct Number { static constexpr int value = I; };
template <class V, int N, class Interleave> TILEKILN_INLINE void turn_by(V* rows, Interleave interleave) {
  V other[N];
  V *from = rows, *to = other;
  TILEKILN_UNROLL(4) for (int step = 1; step < N; step *= 2) {
    TILEKILN_UNROLL(8) for (int i = 0; i < N / 2; ++i) {
      to[2 * i] = interleave(from[i], from[i + N / 2], Number<0>{});
      to[2 * i + 1] = interleave(from[i], from[i + N / 2], Number<1>{});
    }
    V* const swapped = from;
    from = to, to = swapped;
  }
  if (from != rows) __builtin_memcpy(rows, from, sizeof other);
}

// Column i of y, which is contiguous along its rows, is row i of x: y[r][c] = x[c][r] of steps x_step and y_step.
template <class E, int N>
TILEKILN_INLINE void turn_tile(const E* x, long long x_step, E* y, long long y_step) {
  typedef E vector __attribute__((vector_size(N * sizeof(E))));
  vector rows[N];
  TILEKILN_UNROLL(16) for (int i = 0; i < N; ++i) __builtin_memcpy(&rows[i], x + i * x_step, sizeof(vector));
  turn_by<vector, N>(rows, [](vector a, vector b, auto half) __attribute__((always_inline)) {
    return interleaved<decltype(half)::value*(N / 2)>(a, b, typename Counted<N>::of());
  });
  TILEKILN_UNROLL(16) for (int i = 0; i < N; ++i) __builtin_memcpy(y + i * y_step, &rows[i], sizeof(vector));
}

// A square of whole cache lines: each line of x is read once and each of y written once, however far apart rows lie.
template <class E> constexpr int kLineSide = 64 / int(sizeof(E));

// A cache line to its beginning, around the caches.
TILEKILN_INLINE void stream_line(void* to, const void* from) {
#if defined(__AVX512F__)
  _mm512_stream_si512((__m512i*)to, _mm512_loadu_si512(from));
#elif defined(__SSE2__)
  TILEKILN_UNROLL(4)
  for (int i = 0; i < 4; ++i) _mm_stream_si128((__m128i*)to + i, _mm_loadu_si128((const __m128i*)from + i));
#else
  __builtin_memcpy(to, from, 64);
#endif
}

#if defined(__AVX512BW__)
// Interleaves the first (kFrom 0) or second halves of two vectors within each 16 bytes.
template <int kFrom, class V, int... I> TILEKILN_INLINE V interleaved_in_lanes(V a, V b, Indices<I...>) {
  constexpr int kAll = int(sizeof...(I)), kLane = kAll / 4;
  return __builtin_shufflevector(a, b, (I / kLane * kLane + (kFrom * kLane + I % kLane) / 2 + I % 2 * kAll)...);
}
#endif

// Transposes as turn_tile, of kLineSide. kStreaming: rows of y begin at cache lines, and go around the caches.
template <class E, bool kStreaming>
TILEKILN_INLINE void turn_lines(const E* x, long long x_step, E* y, long long y_step) {
  constexpr int kSide = kLineSide<E>;
  const auto put = [&](long long row, const void* line) __attribute__((always_inline)) {
    if constexpr (kStreaming)
      stream_line(y + row * y_step, line);
    else
      __builtin_memcpy(y + row * y_step, line, 64);
  };
#if defined(__AVX512BW__)
  constexpr int kLane = kSide / 4;
  typedef E vector __attribute__((vector_size(64)));
  // Rows of x by kLane: their 16-byte lanes turn alike, and four of those make a row of y.
  alignas(64) vector part[4][kLane];
  TILEKILN_UNROLL(4) for (int g = 0; g < 4; ++g) {
    vector rows[kLane];
    TILEKILN_UNROLL(16) for (int i = 0; i < kLane; ++i) __builtin_memcpy(&rows[i], x + (g * kLane + i) * x_step, 64);
    turn_by<vector, kLane>(rows, [](vector a, vector b, auto half) __attribute__((always_inline)) {
      return interleaved_in_lanes<decltype(half)::value>(a, b, typename Counted<kSide>::of());
    });
    __builtin_memcpy(part[g], rows, sizeof rows);
  }
  TILEKILN_UNROLL(16) for (int i = 0; i < kLane; ++i) {
    __m512i four[4];
    TILEKILN_UNROLL(4) for (int g = 0; g < 4; ++g) four[g] = (__m512i)part[g][i];
    const __m512i low[2] = {_mm512_shuffle_i32x4(four[0], four[1], 0x44), _mm512_shuffle_i32x4(four[2], four[3], 0x44)};
    const __m512i high[2] = {_mm512_shuffle_i32x4(four[0], four[1], 0xee),
                             _mm512_shuffle_i32x4(four[2], four[3], 0xee)};
    const __m512i turned[4] = {_mm512_shuffle_i32x4(low[0], low[1], 0x88), _mm512_shuffle_i32x4(low[0], low[1], 0xdd),
                               _mm512_shuffle_i32x4(high[0], high[1], 0x88),
                               _mm512_shuffle_i32x4(high[0], high[1], 0xdd)};
    TILEKILN_UNROLL(4) for (int lane = 0; lane < 4; ++lane) put(lane * kLane + i, &turned[lane]);
  }
#else
  constexpr int kTile = tile_side<E>();
  alignas(64) E lines[kSide * kSide];
  for (int r = 0; r < kSide; r += kTile)
    for (int c = 0; c < kSide; c += kTile)
      turn_tile<E, kTile>(x + r + c * x_step, x_step, lines + r * kSide + c, kSide);
  for (int r = 0; r < kSide; ++r) put(r, lines + r * kSide);
#endif
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
