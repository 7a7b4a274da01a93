// SPDX-License-Identifier: MIT
// Products of few rows for the engine of gemm: compiled with a target's flags like it and joined with it. Nothing leaves this unit but
// to that engine. Rows of packed panels are tall.h, those of a column-major B dots: of words on targets with dot products of bf16 and of int8.
#include "kernels/gemm/cpu/dots.h"
#include "kernels/gemm/cpu/tall.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

#ifdef __AVX512F__
template void tall_product<ComputeFp32>(const Operands&, int);
#if TILEKILN_PAIRS
template void tall_product<ComputeBf16>(const Operands&, int);
#endif
#if TILEKILN_QUADS
template void tall_product<ComputeInt8>(const Operands&, int);
#else
template void tall_product<ComputeInt16>(const Operands&, int);
#endif
#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#if TILEKILN_DOTS
#include "kernels/gemm/cpu/wide_dots.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

#if TILEKILN_WORD_DOTS

// to[i kPanel + j] = row i of A times row j of B, A rows by B rows; strides and length in bytes. Meanwhile `Ahead` rows from `ahead` on
// are asked for, b_row apart; 0: what comes next of the rows of B.
template <class Compute, int A, int B, int Ahead = 0>
TILEKILN_INLINE void dots(const char* a, i64 a_row, const char* b, i64 b_row, i64 bytes, float* to,
                          [[maybe_unused]] const char* ahead = nullptr) {
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
    if constexpr (Ahead == 0) {
      TILEKILN_UNROLL(8) for (int j = 0; j < B; ++j) __builtin_prefetch(b + j * b_row + k + kDotsAhead, 0, 2);
    } else {
      TILEKILN_UNROLL(2) for (int j = 0; j < Ahead; ++j) __builtin_prefetch(ahead + j * b_row + k, 0, 3);
    }
    step(k, [](const char* p) __attribute__((always_inline)) { return load_unaligned((const float*)p); });
  }
  if (k < bytes) {
    const i64 left = bytes - k;
    step(k, [left](const char* p) __attribute__((always_inline)) { return load_bytes(p, left); });
  }
  store_rows<A, B>(to, kPanel, Compute::kWord == 4 ? int32_totals(sum) : totals(sum));
}

// All rows times B rows of B.
template <class Compute, int B>
TILEKILN_INLINE void dot_rows(const char* a, i64 a_row, int rows, const char* b, i64 b_row, i64 bytes, float* to) {
  int i = 0;
  if constexpr (B == 4) {
    // The next rows of B, by all blocks of rows alike.
    const char* const next = b + B * b_row;
    if (rows >= 13) {
      for (; i + 4 <= rows; i += 4)
        dots<Compute, 4, B, 1>(a + i * a_row, a_row, b, b_row, bytes, to + i * kPanel, next + i / 4 * b_row);
    } else if (rows >= 7) {
      for (; i + 4 <= rows; i += 4)
        dots<Compute, 4, B, 2>(a + i * a_row, a_row, b, b_row, bytes, to + i * kPanel, next + i / 2 * b_row);
    }
    for (; i + 4 <= rows; i += 4) dots<Compute, 4, B>(a + i * a_row, a_row, b, b_row, bytes, to + i * kPanel);
  }
  if constexpr (B > 1)
    for (; i + 2 <= rows; i += 2) dots<Compute, 2, B>(a + i * a_row, a_row, b, b_row, bytes, to + i * kPanel);
  for (; i < rows; ++i) dots<Compute, 1, B>(a + i * a_row, a_row, b, b_row, bytes, to + i * kPanel);
}

// size: bytes of an element of A and B, which are those of words.
template <class Compute> void run_dots(int size, const matrix::Problem& p, const matrix::Unit& u, GemmScratch& x) {
  const Finish finish = finish_of(p);
  const int rows = u.m1 - u.m0;
  const i64 a_row = p.lda * size, b_row = p.ldb * size, bytes = i64(p.k) * size;
  const char* a = (const char*)p.a + u.m0 * a_row;
  [[maybe_unused]] const int* starts = nullptr;
  if constexpr (Compute::kWord == 4) starts = starts_of(x, p, u.m0, u.m1);
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
        for (int l = 0; l < kPanel; ++l) words[l] += uint32_t(starts[i]);
        __builtin_memcpy(sums + i * kPanel, words, sizeof words);
      }
    }
    finish.block(p, sums, u.m0, n, rows, columns);
  }
}

#endif

}  // namespace

void dots_unit(const matrix::Problem& p, const matrix::Unit& u, GemmScratch& x) {
  if (p.dtype == matrix::Dtype::fp16) return run_wide_dots<fp16>(p, u, x);
#if TILEKILN_WORD_DOTS
  if (p.dtype == matrix::Dtype::fp32) return run_dots<ComputeFp32>(sizeof(float), p, u, x);
  if (p.dtype == matrix::Dtype::bf16) return run_dots<ComputeBf16>(sizeof(bf16), p, u, x);
  run_dots<ComputeInt8>(sizeof(int8), p, u, x);
#else
  if (p.dtype == matrix::Dtype::fp32) return run_wide_dots<float>(p, u, x);
  run_wide_dots<bf16>(p, u, x);
#endif
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
#endif
