// SPDX-License-Identifier: MIT
// The SIMD vocabulary: the same names for every ISA, chosen from the compiler's own predefines.
//   vector.h   vf, kLanes fp32 lanes: loads, arithmetic, selection, transpose, and the register block sizes that suit the ISA;
//              word, a factor that meets all lanes of another: vf with a copy in each lane, or what the ISA's products take instead
//   convert.h  kLanes storage elements <-> vf
//   pairs.h    bf16 pairs and their dot product, where the ISA has one (TILEKILN_PAIRS)
//   horizontal.h  sums and maxima across lanes
//   integers.h  products of pairs of int16, and of quads of int8 where the ISA has them (TILEKILN_QUADS)
//   squares.h  products of two columns by two rows, where the ISA has them (TILEKILN_SQUARES)
//   twos.h     two vectors of a row as even and odd elements
//   random.h   64-bit lanes for Philox, and the keep bits of dropout
// Engines of tiles include amx/tiles.h beside it.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "kernels/backends/cpu/avx512/convert.h"
#include "kernels/backends/cpu/avx512/horizontal.h"
#include "kernels/backends/cpu/avx512/integers.h"
#include "kernels/backends/cpu/avx512/pairs.h"
#include "kernels/backends/cpu/avx512/random.h"
#include "kernels/backends/cpu/avx512/squares.h"
#include "kernels/backends/cpu/avx512/twos.h"
#include "kernels/backends/cpu/avx512/vector.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "kernels/backends/cpu/avx2/convert.h"
#include "kernels/backends/cpu/avx2/horizontal.h"
#include "kernels/backends/cpu/avx2/integers.h"
#include "kernels/backends/cpu/avx2/pairs.h"
#include "kernels/backends/cpu/avx2/random.h"
#include "kernels/backends/cpu/avx2/squares.h"
#include "kernels/backends/cpu/avx2/twos.h"
#include "kernels/backends/cpu/avx2/vector.h"
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#include "kernels/backends/cpu/neon/convert.h"
#include "kernels/backends/cpu/neon/horizontal.h"
#include "kernels/backends/cpu/neon/integers.h"
#include "kernels/backends/cpu/neon/pairs.h"
#include "kernels/backends/cpu/neon/random.h"
#include "kernels/backends/cpu/neon/squares.h"
#include "kernels/backends/cpu/neon/twos.h"
#include "kernels/backends/cpu/neon/vector.h"
#else
#include "kernels/backends/cpu/generic/convert.h"
#include "kernels/backends/cpu/generic/horizontal.h"
#include "kernels/backends/cpu/generic/integers.h"
#include "kernels/backends/cpu/generic/pairs.h"
#include "kernels/backends/cpu/generic/random.h"
#include "kernels/backends/cpu/generic/squares.h"
#include "kernels/backends/cpu/generic/twos.h"
#include "kernels/backends/cpu/generic/vector.h"
#endif
