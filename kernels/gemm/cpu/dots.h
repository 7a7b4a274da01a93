// Few rows times a column-major B, as a linear layer that decodes: lanes run along K, nothing is packed, 16 sums at a time.
#pragma once

#include "kernels/gemm/cpu/scratch.h"
#include "kernels/gemm/cpu/shared.h"

#if TILEKILN_QUADS && TILEKILN_PAIRS && defined(__AVX512F__)
#define TILEKILN_DOTS 1
#else
#define TILEKILN_DOTS 0
#endif
#if TILEKILN_DOTS

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// More rows are sooner done by panels: of 16 loads, then, most are of A. 17 and 18 take 0.85 of the time that panels take.
constexpr int kDotRows = 18;

// Whether a problem is one of dots: by the problem alone, so that an element's bits do not depend on how out is cut.
TILEKILN_INLINE bool is_dots(const matrix::Problem& p) { return p.m <= kDotRows && p.b_columns && !p.a_columns; }

// fp32, bf16 or int8. In dots.cpp.
void dots_unit(const matrix::Problem& p, const matrix::Unit& u, GemmScratch& x);

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
#endif
