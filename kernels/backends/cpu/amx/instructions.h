// SPDX-License-Identifier: MIT
// Tiles by the instructions of AMX, which no compiler need know: g++ 12's intrinsics say of a tile load that it reads no memory, so that
// vector stores may sink below it. Here loads name none either, for the work between them to move freely; stores do, and fence().
#pragma once

#include <stdint.h>

#include "kernels/backends/target.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace tiles {

constexpr bool kEmulated = false;
struct alignas(64) Configuration {
  uint8_t palette = 1, start = 0, unused[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
inline constexpr Configuration kWholeTiles;

TILEKILN_INLINE void configure() { asm volatile("ldtilecfg %0" : : "m"(kWholeTiles)); }
TILEKILN_INLINE void release() { asm volatile("tilerelease" : : : "memory"); }
TILEKILN_INLINE void fence() { asm volatile("" : : : "memory"); }

template <int T> TILEKILN_INLINE void load(const void* p, long stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(T));
}
template <int T> TILEKILN_INLINE void load_t1(const void* p, long stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(T));
}
template <int T> TILEKILN_INLINE void store(void* p, long stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T> TILEKILN_INLINE void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(T)); }

template <int C, int A, int B> TILEKILN_INLINE void dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B> TILEKILN_INLINE void dot_ss() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B> TILEKILN_INLINE void dot_us() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B> TILEKILN_INLINE void dot_su() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B> TILEKILN_INLINE void dot_uu() {
  asm volatile("tdpbuud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

}  // namespace tiles
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
