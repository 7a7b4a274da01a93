// SPDX-License-Identifier: MIT
// Products of pairs of int16. Registers are vf by their bits.
#pragma once

#include "kernels/backends/cpu/generic/vector.h"

#define TILEKILN_QUADS 0

namespace tilekiln::cpu::inline TILEKILN_TARGET {

TILEKILN_INLINE vf from_int32(vf a) { return {__builtin_convertvector((int4)a.v, float4)}; }

// int32 lanes: sum + even a even b + odd a odd b, modulo 2^32
TILEKILN_INLINE vf dot_int16(vf sum, vf a, vf b) {
  typedef uint32_t uint4 __attribute__((vector_size(16)));
  const int4 x = (int4)a.v, y = (int4)b.v;
  const int4 low_x = (int4)((uint4)x << 16) >> 16, low_y = (int4)((uint4)y << 16) >> 16;
  const uint4 low = (uint4)low_x * (uint4)low_y, high = (uint4)(x >> 16) * (uint4)(y >> 16);
  return {(float4)((uint4)sum.v + low + high)};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
