// SPDX-License-Identifier: MIT
// The processor's features by kernels/backends/cpu/x86_64.h, beside what the compiler's library answers, where that can be believed.
#include "check.h"
#include "kernels/backends/cpu/x86_64.h"

int main() {
#if defined(__x86_64__) && !defined(__clang__)
  using namespace tilekiln::x86_64;
#define SAME(name, feature) CHECK(has_##feature() == (__builtin_cpu_supports(name) != 0))
  SAME("popcnt", popcnt);
  SAME("ssse3", ssse3);
  SAME("sse4.2", sse4_2);
  SAME("avx", avx);
  SAME("avx2", avx2);
  SAME("bmi", bmi);
  SAME("bmi2", bmi2);
  SAME("fma", fma);
  SAME("avx512f", avx512f);
  SAME("avx512bw", avx512bw);
  SAME("avx512cd", avx512cd);
  SAME("avx512dq", avx512dq);
  SAME("avx512vl", avx512vl);
  SAME("avx512vbmi", avx512vbmi);
  SAME("avx512vnni", avx512vnni);
  SAME("avx512bf16", avx512bf16);
  SAME("x86-64-v2", x86_64_v2);
  SAME("x86-64-v3", x86_64_v3);
  SAME("x86-64-v4", x86_64_v4);
#endif
  return check_result();
}
