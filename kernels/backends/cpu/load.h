// SPDX-License-Identifier: MIT
// Partial vectors: reads and writes that stop where the row stops.
#pragma once

#include "kernels/backends/cpu/vocabulary.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Part of kCount elements, in whole lines, from and to memory. By masks where there are some: a call of memcpy takes 20 ns.
template <class T, int kCount = kLanes> struct Part {
  alignas(64) T row[sizeof(T) * kCount < 64 ? 64 / sizeof(T) : kCount];

#if defined(__AVX512BW__)
  static TILEKILN_INLINE unsigned long long first(int bytes) { return bytes >= 64 ? ~0ull : (1ull << bytes) - 1; }
  TILEKILN_INLINE void read(const T* p, int left) {
    const int bytes = left * int(sizeof(T));
    for (int i = 0; i < int(sizeof row); i += 64)
      _mm512_store_si512((char*)row + i, bytes <= i ? _mm512_setzero_si512()
                                                    : _mm512_maskz_loadu_epi8(first(bytes - i), (const char*)p + i));
  }
  TILEKILN_INLINE void write(T* p, int left) const {
    const int bytes = left * int(sizeof(T));
    for (int i = 0; i < bytes; i += 64)
      _mm512_mask_storeu_epi8((char*)p + i, first(bytes - i), _mm512_load_si512((const char*)row + i));
  }
#else
  TILEKILN_INLINE void read(const T* p, int left) {
    __builtin_memset(row, 0, sizeof row);
    __builtin_memcpy(row, p, bytes(left));
  }
  TILEKILN_INLINE void write(T* p, int left) const { __builtin_memcpy(p, row, bytes(left)); }

 private:
  // g++ warns of counts that it cannot see to fit.
  static TILEKILN_INLINE unsigned long long bytes(int left) {
    if (left < 0 || left > kCount) __builtin_unreachable();
    return left * sizeof(T);
  }
#endif
};

// The first n >= 1 elements exist; the others read as 0.
template <class T> TILEKILN_INLINE vf widen_some(const T* p, int n) {
  if (n >= kLanes) return widen(p);
  Part<T> part;
  part.read(p, n);
  return widen(part.row);
}
#if defined(__AVX512BW__)
TILEKILN_INLINE vf widen_some(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(lane_bits(n >= kLanes ? ~0u : (1u << n) - 1), p)};
}
#elif defined(__AVX2__)
TILEKILN_INLINE vf widen_some(const float* p, int n) {
  if (n >= kLanes) return widen(p);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(spread(lane_bits((1u << n) - 1))))};
}
#endif

template <class T> TILEKILN_INLINE void narrow_some(T* p, vf a, int n) {
  if (n >= kLanes) return narrow(p, a);
  Part<T> part;
  narrow(part.row, a);
  part.write(p, n);
}
#if defined(__AVX512BW__)
TILEKILN_INLINE void narrow_some(float* p, vf a, int n) {
  _mm512_mask_storeu_ps(p, lane_bits(n >= kLanes ? ~0u : (1u << n) - 1), a.v);
}
#elif defined(__AVX2__)
TILEKILN_INLINE void narrow_some(float* p, vf a, int n) {
  if (n >= kLanes) return narrow(p, a);
  _mm256_maskstore_ps(p, _mm256_castps_si256(spread(lane_bits((1u << n) - 1))), a.v);
}
#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
