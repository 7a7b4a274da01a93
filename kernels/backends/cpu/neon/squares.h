// SPDX-License-Identifier: MIT
// Products of squares by BFMMLA and USMMLA: four sums a register, each of twice as many products as a lane of pairs or quads has.
#pragma once

#include "kernels/backends/cpu/neon/integers.h"
#include "kernels/backends/cpu/neon/pairs.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && defined(__ARM_FEATURE_MATMUL_INT8)
#define TILEKILN_SQUARES 1
#else
#define TILEKILN_SQUARES 0
#endif

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// A square is two words of one column, then the same two of the next, or of two rows; of sums it is (column 0 by row 0, by row 1,
// column 1 by row 0, by row 1).
#if TILEKILN_SQUARES

// Bit for bit two times dot_pair, of the first words and then of the second: Arm defines BFMMLA as two unfused dot products one
// after the other, each rounded as BFDOT rounds (to odd, subnormal numbers as 0).
TILEKILN_INLINE vf dot_square_pairs(vf sum, vf columns, vf rows) {
  return {vbfmmlaq_f32(sum.v, halves_of(columns.v), halves_of(rows.v))};
}
// int32: the bytes of columns are unsigned, those of rows signed.
TILEKILN_INLINE vf dot_square_quads(vf sum, vf columns, vf rows) {
  return of_int32(vusmmlaq_s32(int32_of(sum), bytes_of(columns), vreinterpretq_s8_f32(rows.v)));
}

// Words (a0, b0, a1, b1), and (a2, b2, a3, b3): two words of four lanes as squares, or two rows of four sums.
TILEKILN_INLINE vf first_square(vf a, vf b) { return {vzip1q_f32(a.v, b.v)}; }
TILEKILN_INLINE vf second_square(vf a, vf b) { return {vzip2q_f32(a.v, b.v)}; }
// Back again: the rows of sums of two squares.
TILEKILN_INLINE vf first_row(vf first, vf second) { return {vuzp1q_f32(first.v, second.v)}; }
TILEKILN_INLINE vf second_row(vf first, vf second) { return {vuzp2q_f32(first.v, second.v)}; }

// Two words, and 0 behind them: the plain load, which takes no port of products.
TILEKILN_INLINE vf load_two(const void* p) {
  struct Two { uint32_t word[2]; };
  vf r;
  asm("ldr %d0, %1" : "=w"(r.v) : "m"(*(const Two*)p));
  return r;
}

// Words 0 and 1 of two rows of four, and words 2 and 3.
TILEKILN_INLINE vf low_words(vf a, vf b) {
  return {vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a.v), vreinterpretq_f64_f32(b.v)))};
}
TILEKILN_INLINE vf high_words(vf a, vf b) {
  return {vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a.v), vreinterpretq_f64_f32(b.v)))};
}

#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
