// SPDX-License-Identifier: MIT
// Features of an AArch64 processor, by the names that Linux's /proc/cpuinfo has for them. Other systems than Linux and macOS
// tell nothing, and have none.
#pragma once

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace tilekiln::aarch64 {

#if defined(__linux__)
// Bits of the kernel's user interface (asm/hwcap.h), which older headers of the C library lack.
inline bool has_first(int bit) { return getauxval(AT_HWCAP) >> bit & 1; }
inline bool has_second(int bit) { return getauxval(AT_HWCAP2) >> bit & 1; }
inline bool has_asimdhp() { return has_first(10); }
inline bool has_asimddp() { return has_first(20); }
inline bool has_i8mm() { return has_second(13); }
inline bool has_bf16() { return has_second(14); }
#elif defined(__APPLE__)
// A name that the system does not know is of a feature that it has not, or that it is too old to tell.
inline bool tells(const char* name) {
  int value = 0;
  size_t bytes = sizeof(value);
  return sysctlbyname(name, &value, &bytes, nullptr, 0) == 0 && value != 0;
}
// macOS 11 has other words for these two and none for dot products, which every processor of Apple's with fp16 has.
inline bool has_asimdhp() { return tells("hw.optional.arm.FEAT_FP16") || tells("hw.optional.neon_fp16"); }
inline bool has_asimddp() { return tells("hw.optional.arm.FEAT_DotProd") || tells("hw.optional.neon_fp16"); }
inline bool has_i8mm() { return tells("hw.optional.arm.FEAT_I8MM"); }
inline bool has_bf16() { return tells("hw.optional.arm.FEAT_BF16"); }
#else
inline bool has_asimdhp() { return false; }
inline bool has_asimddp() { return false; }
inline bool has_i8mm() { return false; }
inline bool has_bf16() { return false; }
#endif

}  // namespace tilekiln::aarch64
