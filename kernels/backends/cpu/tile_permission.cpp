// SPDX-License-Identifier: MIT
#include "kernels/backends/cpu/tile_permission.h"

#if defined(__x86_64__) && defined(__linux__)

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/backends/cpu/x86_64.h"

namespace tilekiln::amx {
namespace {

// Numbers of the kernel's asm/prctl.h, and that of the part of a thread's state that tiles are: older headers lack them.
constexpr int kAskedFor = 0x1022, kAsk = 0x1023;
constexpr unsigned long kTiles = 18;

}  // namespace

bool present() noexcept {
  constexpr unsigned products_and_tiles = 1u << 22 | 1u << 24 | 1u << 25, configuration_and_data = 3u << 17;
  return (x86_64::leaf(7).d & products_and_tiles) == products_and_tiles &&
         (x86_64::saved() & configuration_and_data) == configuration_and_data;
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
