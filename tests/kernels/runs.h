// SPDX-License-Identifier: MIT
// Tells whether this machine runs the engines of a target, by the target's word; those of tiles where it needs the trap for them too.
#pragma once

#include <cstring>

#include "kernels/backends/cpu/aarch64.h"
#include "kernels/backends/cpu/x86_64.h"

// Calls X(Engine, family, target, pipeline) for each target that a test may be linked with, those of tiles first.
#define TILEKILN_EACH_TARGET(X, Engine, family, tiles, lanes)                                                       \
  X(Engine, family, amx, tiles) X(Engine, family, amxemulated, tiles) X(Engine, family, avx512bf16, lanes)          \
  X(Engine, family, avx512, lanes) X(Engine, family, avx2, lanes) X(Engine, family, neonbf16, lanes)                \
  X(Engine, family, neon, lanes) X(Engine, family, generic, lanes)
#define TILEKILN_WEAK_ENGINE(Engine, family, target, pipeline) \
  extern "C" __attribute__((weak)) const Engine tilekiln_cpu_##target##_##family##_##pipeline;
#define TILEKILN_NAMED_ENGINE(Engine, family, target, pipeline) \
  {"cpu_" #target, &tilekiln_cpu_##target##_##family##_##pipeline},

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
