// Partial vectors: reads and writes that stop where the row stops.
#pragma once

#include "kernels/backends/cpu/vocabulary.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The first n >= 1 elements exist; the others read as 0.
template <class T> TILEKILN_INLINE vf widen_some(const T* p, int n) {
  if (n >= kLanes) return widen(p);
  T row[kLanes];
  __builtin_memset(row, 0, sizeof row);
  __builtin_memcpy(row, p, n * sizeof(T));
  return widen(row);
}

template <class T> TILEKILN_INLINE void narrow_some(T* p, vf a, int n) {
  if (n >= kLanes) return narrow(p, a);
  T row[kLanes];
  narrow(row, a);
  __builtin_memcpy(p, row, n * sizeof(T));
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
