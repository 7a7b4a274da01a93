// SPDX-License-Identifier: MIT
#include "kernels/runtime/forks.h"

#include <pthread.h>

#include "kernels/runtime/atomic.h"

namespace tilekiln {
namespace {

Atomic<uint32_t> forks;

void count() { forks.add(1); }

}  // namespace

void watch_forks() noexcept {
  static const int watching = pthread_atfork(nullptr, nullptr, count);
  static_cast<void>(watching);
}

uint32_t fork_count() noexcept { return forks.load(); }

}  // namespace tilekiln
