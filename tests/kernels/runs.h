// SPDX-License-Identifier: MIT
// Tells whether this machine runs the engines of a target, by the target's word; those of tiles where it needs the trap for them too.
#pragma once

#include <cstring>

#include "kernels/backends/cpu/aarch64.h"
#include "kernels/backends/cpu/x86_64.h"

namespace tilekiln::test {

inline bool runs(const char* target) {
  const auto is = [target](const char* name) { return std::strcmp(target, name) == 0; };
#if defined(__x86_64__)
  const bool v4 = x86_64::has_x86_64_v4();
  const bool pairs = v4 && x86_64::has_avx512bf16();
  if (is("cpu_avx512bf16")) return pairs;
  if (is("cpu_amx") || is("cpu_amxemulated")) return pairs && x86_64::has_avx512vbmi();
  if (is("cpu_avx512")) return v4;
  if (is("cpu_avx2")) return x86_64::has_x86_64_v3();
#elif defined(__aarch64__)
  const bool neon = aarch64::has_asimddp() && aarch64::has_asimdhp();
  if (is("cpu_neonbf16")) return neon && aarch64::has_bf16() && aarch64::has_i8mm();
  if (is("cpu_neon")) return neon;
#endif
  return is("cpu_generic");
}

}  // namespace tilekiln::test
