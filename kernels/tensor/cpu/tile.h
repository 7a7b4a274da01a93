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

// Interleaving row i with row i + N/2, log2(N) times over, turns N rows of N.
template <class V, int N, int... I> TILEKILN_INLINE void turn(V* rows, Indices<I...> order) {
  V other[N];
  V *from = rows, *to = other;
  TILEKILN_UNROLL(4) for (int step = 1; step < N; step *= 2) {
    TILEKILN_UNROLL(8) for (int i = 0; i < N / 2; ++i) {
      to[2 * i] = interleaved<0>(from[i], from[i + N / 2], order);
      to[2 * i + 1] = interleaved<N / 2>(from[i], from[i + N / 2], order);
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
  turn<vector, N>(rows, typename Counted<N>::of());
  TILEKILN_UNROLL(16) for (int i = 0; i < N; ++i) __builtin_memcpy(y + i * y_step, &rows[i], sizeof(vector));
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
