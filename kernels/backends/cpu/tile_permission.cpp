#include "kernels/backends/cpu/tile_permission.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tilekiln::amx {
namespace {

// Of the kernel's asm/prctl.h, and the number of the part of a thread's state that tiles are: older headers lack them.
constexpr int kAskedFor = 0x1022, kAsk = 0x1023;
constexpr unsigned long kTiles = 18;

}  // namespace

bool present() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned saved_by_system = 1u << 27, products_and_tiles = 1u << 22 | 1u << 24 | 1u << 25;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & saved_by_system) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & products_and_tiles) != products_and_tiles) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned configuration_and_data = 3u << 17;
  return (low & configuration_and_data) == configuration_and_data;
}

const char* refusal() noexcept {
  unsigned long granted = 0;
  if (syscall(SYS_arch_prctl, kAskedFor, &granted) == 0 && (granted >> kTiles & 1) != 0) return nullptr;
  if (syscall(SYS_arch_prctl, kAsk, kTiles) == 0) return nullptr;
  if (errno == ENOSPC)
    return "a thread of this process has an alternate signal stack that is too small to save tiles (sigaltstack): it "
           "must have at least getauxval(AT_MINSIGSTKSZ) bytes";
  if (errno == EPERM || errno == EACCES) return "the system forbids this process to use tiles";
  return "the system has no tiles for this process: Linux has them from 5.16 on";
}

}  // namespace tilekiln::amx

#else

namespace tilekiln::amx {

bool present() noexcept { return false; }
const char* refusal() noexcept { return "the system has no tiles"; }

}  // namespace tilekiln::amx

#endif
