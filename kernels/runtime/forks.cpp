#include "kernels/runtime/forks.h"

#include <pthread.h>

#include <atomic>

namespace tilekiln {
namespace {

std::atomic<uint32_t> forks = 0;

void count() { forks.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

void watch_forks() noexcept {
  static const int watching = pthread_atfork(nullptr, nullptr, count);
  static_cast<void>(watching);
}

uint32_t fork_count() noexcept { return forks.load(std::memory_order_relaxed); }

}  // namespace tilekiln
