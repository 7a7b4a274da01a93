// SPDX-License-Identifier: MIT
// Tiles in plain C++, each thread's its own.
#pragma once

#include "kernels/backends/cpu/amx/rule.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace tiles {

constexpr bool kEmulated = true;
struct Registers {
  bool configured;
  alignas(64) Row tile[8][kTileRows];
};
inline thread_local Registers registers;

// The rows of a tile. A word without configuration ends the program, as the instruction would.
inline Row* rows_of(int tile) {
  if (!registers.configured) __builtin_trap();
  return registers.tile[tile];
}

inline void configure() {
  __builtin_memset(&registers, 0, sizeof registers);
  registers.configured = true;
}
inline void release() { registers.configured = false; }
inline void fence() {}

template <int T> inline void load(const void* p, long stride) {
  Row* const rows = rows_of(T);
  for (int r = 0; r < kTileRows; ++r) __builtin_memcpy(rows[r], (const char*)p + r * stride, kTileBytes);
}
template <int T> inline void load_t1(const void* p, long stride) { load<T>(p, stride); }
template <int T> inline void store(void* p, long stride) {
  const Row* const rows = rows_of(T);
  for (int r = 0; r < kTileRows; ++r) __builtin_memcpy((char*)p + r * stride, rows[r], kTileBytes);
}
template <int T> inline void zero() { __builtin_memset(rows_of(T), 0, sizeof registers.tile[T]); }

template <int C, int A, int B> inline void dot_bf16() {
  rule::dot_bf16(rows_of(C), rows_of(A), rows_of(B), kTileRows, kColumns, kTileRows);
}
template <int C, int A, int B> inline void dot_ss() {
  rule::dot_bytes<true, true>(rows_of(C), rows_of(A), rows_of(B), kTileRows, kColumns, kTileRows);
}
template <int C, int A, int B> inline void dot_us() {
  rule::dot_bytes<false, true>(rows_of(C), rows_of(A), rows_of(B), kTileRows, kColumns, kTileRows);
}
template <int C, int A, int B> inline void dot_su() {
  rule::dot_bytes<true, false>(rows_of(C), rows_of(A), rows_of(B), kTileRows, kColumns, kTileRows);
}
template <int C, int A, int B> inline void dot_uu() {
  rule::dot_bytes<false, false>(rows_of(C), rows_of(A), rows_of(B), kTileRows, kColumns, kTileRows);
}

}  // namespace tiles
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
