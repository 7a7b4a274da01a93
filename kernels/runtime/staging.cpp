// SPDX-License-Identifier: MIT
#include "kernels/runtime/staging.h"

#include <stdlib.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "kernels/runtime/forks.h"

namespace tilekiln {
namespace {

// Releases memory away from the threads that run streams: on a device, what frees pinned memory waits for locks that
// the thread of a stream's callback holds. Its own thread starts with the first release.
class PinnedHostReleaser {
 public:
  struct Entry {
    void (*release)(void* context, void* memory, size_t bytes);
    void* context;
    void* memory;
    size_t bytes;
    Entry* next = nullptr;
  };

  PinnedHostReleaser() = default;
  // Releases what is still queued, then ends the thread.
  ~PinnedHostReleaser();
  PinnedHostReleaser(const PinnedHostReleaser&) = delete;
  PinnedHostReleaser& operator=(const PinnedHostReleaser&) = delete;

  // Never waits for a release, calls nothing of a stream, allocates nothing: takes the entry over, which `new` made.
  void enqueue(Entry* entry) noexcept;
  // Waits until what has been enqueued so far is released. Not from a release.
  void drain();

 private:
  void serve();
  std::mutex mutex_;
  std::condition_variable posted_, progress_;
  Entry* first_ = nullptr;
  Entry** last_ = &first_;
  uint64_t enqueued_ = 0, released_ = 0;
  bool stop_ = false;
  std::thread worker_;
};

PinnedHostReleaser::~PinnedHostReleaser() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    posted_.notify_one();
  }
  if (worker_.joinable()) worker_.join();
}

void PinnedHostReleaser::enqueue(Entry* entry) noexcept {
  std::lock_guard lock(mutex_);
  entry->next = nullptr;
  *last_ = entry;
  last_ = &entry->next;
  ++enqueued_;
  if (!worker_.joinable()) {
    try {
      worker_ = std::thread([this] { serve(); });
    } catch (...) {
      // The system gives no thread now: the entry waits for the next one that comes.
      return;
    }
  }
  posted_.notify_one();
}

void PinnedHostReleaser::drain() {
  std::unique_lock lock(mutex_);
  const uint64_t last = enqueued_;
  if (released_ < last && !worker_.joinable()) worker_ = std::thread([this] { serve(); });
  progress_.wait(lock, [&] { return released_ >= last; });
}

void PinnedHostReleaser::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [&] { return first_ != nullptr || stop_; });
    if (first_ == nullptr) return;
    Entry* const entry = first_;
    first_ = entry->next;
    if (first_ == nullptr) last_ = &first_;
    lock.unlock();
    entry->release(entry->context, entry->memory, entry->bytes);
    delete entry;
    lock.lock();
    ++released_;
    progress_.notify_all();
  }
}

struct OfProcess {
  const uint32_t forks = fork_count();
  PinnedHostReleaser releaser;
};
// Never destroyed, as streams and the pool are not: their threads may still hand memory over while the process exits.
std::atomic<OfProcess*> of_process = nullptr;

void* allocate_plain(void*, size_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64); }
void release_plain(void*, void* memory, size_t) { free(memory); }
constexpr tilekiln_staging_allocator plain = {sizeof(tilekiln_staging_allocator), allocate_plain, release_plain,
                                              nullptr};

// The releaser of this process; made anew in a forked child, where the parent's thread does not exist.
PinnedHostReleaser& pinned_host_releaser() {
  watch_forks();
  OfProcess* known = of_process.load(std::memory_order_acquire);
  if (known != nullptr && known->forks == fork_count()) return known->releaser;
  OfProcess* const fresh = new OfProcess;
  if (of_process.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) return fresh->releaser;
  delete fresh;
  return known->releaser;
}

}  // namespace

tilekiln_status allocate_staging(const tilekiln_staging_allocator* allocator, size_t bytes,
                                 std::shared_ptr<void>* memory) {
  if (allocator == nullptr) {
    return fail_argument("allocator", "was null, must be given: tilekiln_staging_default() is the library's own");
  }
  if (allocator->size != sizeof(tilekiln_staging_allocator)) {
    return fail_argument("allocator", "size was %zu, must be %zu, sizeof(tilekiln_staging_allocator)", allocator->size,
                         sizeof(tilekiln_staging_allocator));
  }
  if (allocator->allocate == nullptr || allocator->release == nullptr) {
    return fail_argument("allocator", "%s was null, must be a function",
                         allocator->allocate == nullptr ? "allocate" : "release");
  }
  // Made now: the thread that lets go of the memory must not need any.
  PinnedHostReleaser& releaser = pinned_host_releaser();
  auto entry = std::make_unique<PinnedHostReleaser::Entry>();
  void* const data = allocator->allocate(allocator->context, bytes);
  if (data == nullptr)
    return fail(TILEKILN_OUT_OF_MEMORY, "the staging allocator had no %zu bytes; nothing was enqueued", bytes);
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) {
    allocator->release(allocator->context, data, bytes);
    return fail_argument("allocator", "gave memory at %p, must be aligned to 16 bytes", data);
  }
  *entry = {allocator->release, allocator->context, data, bytes};
  PinnedHostReleaser::Entry* const own = entry.release();
  // Should the shared pointer itself find no memory, it calls the deleter.
  *memory = std::shared_ptr<void>(data, [own, &releaser](void*) { releaser.enqueue(own); });
  return TILEKILN_OK;
}

}  // namespace tilekiln

using namespace tilekiln;

const tilekiln_staging_allocator* tilekiln_staging_default(void) { return &plain; }

tilekiln_status tilekiln_staging_drain(void) {
  try {
    pinned_host_releaser().drain();
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}
