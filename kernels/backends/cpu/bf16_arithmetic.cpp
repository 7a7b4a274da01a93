// SPDX-License-Identifier: MIT
#include "kernels/backends/cpu/bf16_arithmetic.h"

#if defined(__x86_64__)

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/backends/cpu/x86_64.h"

namespace tilekiln {
namespace {

int64_t now() {
  timespec at = {};
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * int64_t{1000000000} + at.tv_nsec;
}

// Ten sums, so that none waits for itself; zeros, whose speed is that of any number. Registers above 15 are left alone, and the compiler
// need not know of AVX-512.
#define TILEKILN_TEN(instruction)                                                                                     \
  instruction " %%zmm10, %%zmm10, %%zmm0\n" instruction " %%zmm10, %%zmm10, %%zmm1\n" instruction                     \
              " %%zmm10, %%zmm10, %%zmm2\n" instruction " %%zmm10, %%zmm10, %%zmm3\n" instruction                     \
              " %%zmm10, %%zmm10, %%zmm4\n" instruction " %%zmm10, %%zmm10, %%zmm5\n" instruction                     \
              " %%zmm10, %%zmm10, %%zmm6\n" instruction " %%zmm10, %%zmm10, %%zmm7\n" instruction                     \
              " %%zmm10, %%zmm10, %%zmm8\n" instruction " %%zmm10, %%zmm10, %%zmm9\n"
#define TILEKILN_TIMED(body)                                                                                          \
  const int64_t begun = now();                                                                                        \
  asm volatile("vpxor %%xmm10, %%xmm10, %%xmm10\n"                                                                    \
               "vpxor %%xmm0, %%xmm0, %%xmm0\n vpxor %%xmm1, %%xmm1, %%xmm1\n vpxor %%xmm2, %%xmm2, %%xmm2\n"         \
               "vpxor %%xmm3, %%xmm3, %%xmm3\n vpxor %%xmm4, %%xmm4, %%xmm4\n vpxor %%xmm5, %%xmm5, %%xmm5\n"         \
               "vpxor %%xmm6, %%xmm6, %%xmm6\n vpxor %%xmm7, %%xmm7, %%xmm7\n vpxor %%xmm8, %%xmm8, %%xmm8\n"         \
               "vpxor %%xmm9, %%xmm9, %%xmm9\n"                                                                       \
               "1:\n" body                                                                                            \
               "dec %0\n jnz 1b\n vzeroupper\n"                                                                       \
               : "+r"(rounds)                                                                                         \
               :                                                                                                      \
               : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10");      \
  return now() - begun

// Nanoseconds of `rounds` times 320 multiply-adds.
__attribute__((noinline)) int64_t by_dots(int64_t rounds) { TILEKILN_TIMED(TILEKILN_TEN("vdpbf16ps")); }
__attribute__((noinline)) int64_t by_fp32(int64_t rounds) {
  TILEKILN_TIMED(TILEKILN_TEN("vfmadd231ps") TILEKILN_TEN("vfmadd231ps"));
}

struct Answer {
  bool widens = false;
  char says[200] = "";
};

// The time of dots over that of fp32. In turn, the least of each: something else of the machine may take time from any.
double timed() {
  constexpr int64_t rounds = 400;  // 1 to 4 microseconds
  constexpr int samples = 9;       // the first finds the units asleep
  int64_t dots = INT64_MAX, fp32 = INT64_MAX;
  for (int i = 0; i < samples; ++i) {
    const int64_t first = by_dots(rounds), second = by_fp32(rounds);
    dots = first < dots ? first : dots;
    fp32 = second < fp32 ? second : fp32;
  }
  return static_cast<double>(dots) / static_cast<double>(fp32 > 0 ? fp32 : 1);
}

Answer ask() {
  Answer made;
  if (!x86_64::has_avx512bf16()) return made;
  const char* const word = getenv("TILEKILN_BF16");
  const bool is_said = word != nullptr && *word != 0;
  if (is_said && (strcmp(word, "fp32") == 0 || strcmp(word, "dots") == 0)) {
    made.widens = strcmp(word, "fp32") == 0;
    snprintf(made.says, sizeof(made.says), "bf16 is multiplied %s (TILEKILN_BF16=%s)",
             made.widens ? "as fp32" : "in pairs", word);
    return made;
  }
  if (is_said) fprintf(stderr, "tilekiln: TILEKILN_BF16: was \"%s\", must be dots or fp32; ignored\n", word);
  // Dots read half as much: they are taken where they are but little slower.
  constexpr double little = 1.25;
  const double ratio = timed();
  made.widens = ratio > little;
  snprintf(made.says, sizeof(made.says),
           "bf16 is multiplied %s: dot products of pairs take %.2f of the time of fp32's multiply-adds",
           made.widens ? "as fp32" : "in pairs", ratio);
  return made;
}

const Answer& answer() {
  static const Answer made = ask();
  return made;
}

}  // namespace

bool widens_bf16() noexcept { return answer().widens; }
const char* bf16_arithmetic() noexcept { return answer().says; }

}  // namespace tilekiln

#else

namespace tilekiln {

bool widens_bf16() noexcept { return false; }
const char* bf16_arithmetic() noexcept { return ""; }

}  // namespace tilekiln

#endif
