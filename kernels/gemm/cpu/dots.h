// SPDX-License-Identifier: MIT
// Few rows times a column-major B, as a linear layer that decodes: lanes run along K, nothing is packed.
#pragma once

#include "kernels/gemm/cpu/scratch.h"
#include "kernels/gemm/cpu/shared.h"

// Dots of words, by dot products of bf16 and of int8; else of elements that are widened.
#if TILEKILN_QUADS && TILEKILN_PAIRS && defined(__AVX512F__)
#define TILEKILN_WORD_DOTS 1
#else
#define TILEKILN_WORD_DOTS 0
#endif
#if defined(__AVX2__)
#define TILEKILN_DOTS 1
#else
#define TILEKILN_DOTS 0
#endif
#if TILEKILN_DOTS

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// More rows are sooner done by panels: of 16 loads, then, most are of A. 17 and 18 take 0.85 of the time that panels take.
constexpr int kDotRows = 18;
// Rows for which elements are widened for every row of A again. AVX2's panels are as fast from 7 rows on; those of AVX-512 take 1.0 to
// 1.7 times as long at 15, and rows of a are widened beforehand from 16 on (WideRows of host.h).
constexpr int kWideDotRows = kLanes == 16 ? 15 : 6;
// Bytes that rows of B are asked for ahead, into L2: rows a power of two apart share a set of L1, which does not hold the lines of eight
// (one row on Zen 4, fp32 21 -> 28 GB/s, bf16 20 -> 24, of 23 to 29 of a read loop over pages of 4 KiB).
constexpr int kDotsAhead = 1024;

// Tells whether a problem is one of dots: by the problem alone, so that an element's bits do not depend on how out is cut.
TILEKILN_INLINE bool is_dots(const matrix::Problem& p) {
  const bool words = TILEKILN_WORD_DOTS && p.dtype != matrix::Dtype::fp16;
  return p.m <= (words ? kDotRows : kWideDotRows) && p.b_columns && !p.a_columns;
}

// fp32, fp16, bf16, and int8 where words are multiplied. In dots.cpp.
void dots_unit(const matrix::Problem& p, const matrix::Unit& u, GemmScratch& x);

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
#endif
