// Features of an AArch64 processor, by the names that /proc/cpuinfo has for them. Systems that tell nothing have none.
#pragma once

#if defined(__linux__)
#include <sys/auxv.h>
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
#else
inline bool has_asimdhp() { return false; }
inline bool has_asimddp() { return false; }
inline bool has_i8mm() { return false; }
inline bool has_bf16() { return false; }
#endif

}  // namespace tilekiln::aarch64
