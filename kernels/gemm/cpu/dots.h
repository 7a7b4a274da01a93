// Few rows times a column-major B, as a linear layer that decodes: lanes run along K, nothing is packed, 16 sums at a time.
#pragma once

#include "kernels/gemm/cpu/epilogue.h"
#include "kernels/gemm/cpu/scratch.h"

#define TILEKILN_DOTS (TILEKILN_QUADS && TILEKILN_PAIRS)
#if TILEKILN_DOTS
#include "kernels/backends/cpu/avx512/horizontal.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// More rows are sooner done by panels: of 16 loads, then, most are of A. 17 and 18 take 0.85 of the time that panels take.
constexpr int kDotRows = 18;

// to[i kPanel + j] = row i of A times row j of B, A rows by B rows; strides and length in bytes. Meanwhile 1 or 2 rows from `ahead` on
// are asked for, b_row apart; 0: what comes next of the rows of B.
template <class Compute, int A, int B>
TILEKILN_INLINE void dots(const char* a, i64 a_row, const char* b, i64 b_row, i64 bytes, float* to,
                          const char* ahead = nullptr, int ahead_rows = 0) {
  static_assert(A * B <= 16);
  vf sum[16];
  TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) sum[i] = zero();
  const auto step = [&](i64 k, auto&& get) __attribute__((always_inline)) {
    vf y[A];
    TILEKILN_UNROLL(4) for (int i = 0; i < A; ++i) y[i] = get(a + i * a_row + k);
    TILEKILN_UNROLL(8) for (int j = 0; j < B; ++j) {
      vf x = get(b + j * b_row + k);
      if constexpr (Compute::kWord == 4) x = flip_signs(x);
      TILEKILN_UNROLL(4) for (int i = 0; i < A; ++i) sum[i * B + j] = Compute::multiply_add(sum[i * B + j], x, y[i]);
    }
  };
  i64 k = 0;
  for (; k + 64 <= bytes; k += 64) {
    if (ahead_rows == 0) {
      TILEKILN_UNROLL(8) for (int j = 0; j < B; ++j) __builtin_prefetch(b + j * b_row + k + 1024, 0, 3);
    } else {
      __builtin_prefetch(ahead + k, 0, 3);
      if (ahead_rows > 1) __builtin_prefetch(ahead + b_row + k, 0, 3);
    }
    step(k, [](const char* p) __attribute__((always_inline)) { return load_unaligned((const float*)p); });
  }
  if (k < bytes) {
    const i64 left = bytes - k;
    step(k, [left](const char* p) __attribute__((always_inline)) { return load_bytes(p, left); });
  }
  alignas(64) float t[16];
  store(t, Compute::kWord == 4 ? int32_totals(sum) : totals(sum));
  for (int i = 0; i < A; ++i) {
    for (int j = 0; j < B; ++j) to[i * kPanel + j] = t[i * B + j];
  }
}

// All rows times B rows of B.
template <class Compute, int B>
TILEKILN_INLINE void dot_rows(const char* a, i64 a_row, int rows, const char* b, i64 b_row, i64 bytes, float* to) {
  int i = 0;
  if constexpr (B == 4) {
    // The next rows of B, by all blocks of rows alike.
    const int share = rows >= 13 ? 1 : rows >= 7 ? 2 : 0;
    for (const char* next = b + B * b_row; i + 4 <= rows; i += 4, next += share * b_row)
      dots<Compute, 4, B>(a + i * a_row, a_row, b, b_row, bytes, to + i * kPanel, next, i < 16 ? share : 0);
  }
  if constexpr (B > 1)
    for (; i + 2 <= rows; i += 2) dots<Compute, 2, B>(a + i * a_row, a_row, b, b_row, bytes, to + i * kPanel);
  for (; i < rows; ++i) dots<Compute, 1, B>(a + i * a_row, a_row, b, b_row, bytes, to + i * kPanel);
}

// Whether a problem is one of dots: by the problem alone, so that an element's bits do not depend on how out is cut.
TILEKILN_INLINE bool is_dots(const matrix::Problem& p) { return p.m <= kDotRows && p.b_columns && !p.a_columns; }

// size: bytes of an element of A and B, which are those of words.
template <class Compute> void run_dots(int size, const matrix::Problem& p, const matrix::Unit& u, GemmScratch& x) {
  const Finish finish = finish_of(p);
  const int rows = u.m1 - u.m0;
  const i64 a_row = p.lda * size, b_row = p.ldb * size, bytes = i64(p.k) * size;
  const char* a = (const char*)p.a + u.m0 * a_row;
  if constexpr (Compute::kWord == 4) start_rows(x.starts, p, u.m0, u.m1);
  float* const sums = x.sums;  // rows x kPanel
  for (int n = u.n0; n < u.n1; n += kPanel) {
    const int columns = least(u.n1 - n, kPanel);
    const char* b = (const char*)p.b + n * b_row;
    int j = 0;
    if (rows <= 2) {
      for (; j + 8 <= columns; j += 8) dot_rows<Compute, 8>(a, a_row, rows, b + j * b_row, b_row, bytes, sums + j);
    }
    for (; j + 4 <= columns; j += 4) dot_rows<Compute, 4>(a, a_row, rows, b + j * b_row, b_row, bytes, sums + j);
    for (; j < columns; ++j) dot_rows<Compute, 1>(a, a_row, rows, b + j * b_row, b_row, bytes, sums + j);
    if constexpr (Compute::kWord == 4) {
      for (int i = 0; i < rows; ++i) {
        uint32_t words[kPanel];
        __builtin_memcpy(words, sums + i * kPanel, sizeof words);
        for (int l = 0; l < kPanel; ++l) words[l] += uint32_t(x.starts[i]);
        __builtin_memcpy(sums + i * kPanel, words, sizeof words);
      }
    }
    finish.block(p, sums, u.m0, n, rows, columns);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
#endif
