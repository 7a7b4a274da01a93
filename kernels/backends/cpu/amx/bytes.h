// SPDX-License-Identifier: MIT
// Bytes of AVX-512, which every processor with tiles has, on their way to tiles.
#pragma once

#include "kernels/backends/cpu/vocabulary.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Bytes less n, modulo 256.
TILEKILN_INLINE vf less_bytes(vf a, int n) {
  return {_mm512_castsi512_ps(_mm512_sub_epi8(_mm512_castps_si512(a.v), _mm512_set1_epi8(char(n))))};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
