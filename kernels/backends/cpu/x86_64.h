// SPDX-License-Identifier: MIT
// Features of an x86-64 processor that the system lets programs use, by the names of __builtin_cpu_supports. The compiler's own
// answer is not asked for: the library that zig 0.17 brings for it says no to everything.
#pragma once
#if defined(__x86_64__)

#include <cpuid.h>

namespace tilekiln::x86_64 {

struct Leaf { unsigned a = 0, b = 0, c = 0, d = 0; };

// Zeros where the processor has no such leaf.
inline Leaf leaf(unsigned number, unsigned part = 0) {
  Leaf found;
  __get_cpuid_count(number, part, &found.a, &found.b, &found.c, &found.d);
  return found;
}

// The registers that the system saves for every thread: bits of XCR0.
inline unsigned saved() {
  if ((leaf(1).c >> 27 & 1) == 0) return 0;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

class Processor {
 public:
  bool first(int bit) const { return first_.c >> bit & 1; }
  bool avx(bool present) const { return present && (saved_ & 0x6) == 0x6; }
  bool avx512(bool present) const { return present && (saved_ & 0xe6) == 0xe6; }

  const Leaf first_ = leaf(1), seventh_ = leaf(7), second_of_seventh_ = leaf(7, 1), extended_ = leaf(0x80000001);

 private:
  const unsigned saved_ = saved();
};

// A question to the processor is one to the hypervisor on virtual machines, and takes microseconds there.
inline const Processor& processor() {
  static const Processor found;
  return found;
}

inline bool has_ssse3() { return processor().first(9); }
inline bool has_sse4_2() { return processor().first(20); }
inline bool has_popcnt() { return processor().first(23); }
inline bool has_avx() { return processor().avx(processor().first(28)); }
inline bool has_fma() { return processor().avx(processor().first(12)); }
inline bool has_bmi() { return processor().seventh_.b >> 3 & 1; }
inline bool has_bmi2() { return processor().seventh_.b >> 8 & 1; }
inline bool has_avx2() { return processor().avx(processor().seventh_.b >> 5 & 1); }
inline bool has_avx512f() { return processor().avx512(processor().seventh_.b >> 16 & 1); }
inline bool has_avx512dq() { return processor().avx512(processor().seventh_.b >> 17 & 1); }
inline bool has_avx512cd() { return processor().avx512(processor().seventh_.b >> 28 & 1); }
inline bool has_avx512bw() { return processor().avx512(processor().seventh_.b >> 30 & 1); }
inline bool has_avx512vl() { return processor().avx512(processor().seventh_.b >> 31 & 1); }
inline bool has_avx512vbmi() { return processor().avx512(processor().seventh_.c >> 1 & 1); }
inline bool has_avx512vnni() { return processor().avx512(processor().seventh_.c >> 11 & 1); }
inline bool has_avx512fp16() { return processor().avx512(processor().seventh_.d >> 23 & 1); }
inline bool has_avx512bf16() { return processor().avx512(processor().second_of_seventh_.a >> 5 & 1); }

// The levels of the psABI.
inline bool has_x86_64_v2() {
  constexpr unsigned rest = 1u << 0 | 1u << 13 | 1u << 19;  // SSE3, CMPXCHG16B, SSE4.1
  const bool lahf = processor().extended_.c & 1;
  return (processor().first_.c & rest) == rest && lahf && has_ssse3() && has_sse4_2() && has_popcnt();
}
inline bool has_x86_64_v3() {
  const bool lzcnt = processor().extended_.c >> 5 & 1, movbe = processor().first(22), f16c = processor().first(29);
  return has_x86_64_v2() && has_avx() && has_avx2() && has_fma() && has_bmi() && has_bmi2() && lzcnt && movbe && f16c;
}
inline bool has_x86_64_v4() {
  return has_x86_64_v3() && has_avx512f() && has_avx512bw() && has_avx512cd() && has_avx512dq() && has_avx512vl();
}

}  // namespace tilekiln::x86_64

#endif
