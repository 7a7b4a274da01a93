// SPDX-License-Identifier: MIT
// Products of pairs of int16. Registers are vf by their bits.
#pragma once

#include "kernels/backends/cpu/avx2/vector.h"

#define TILEKILN_QUADS 0

namespace tilekiln::cpu::inline TILEKILN_TARGET {

TILEKILN_INLINE vf from_int32(vf a) { return {_mm256_cvtepi32_ps(_mm256_castps_si256(a.v))}; }

// int32 lanes: sum + even a even b + odd a odd b, modulo 2^32
TILEKILN_INLINE vf dot_int16(vf sum, vf a, vf b) {
  const __m256i x = _mm256_madd_epi16(_mm256_castps_si256(a.v), _mm256_castps_si256(b.v));
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sum.v), x))};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
