// Host memory through which a stream copies, and the thread that gives it back.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "tilekiln/runtime/status.h"

namespace tilekiln {

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

// That of the process; made anew in a forked child, where the thread does not exist.
PinnedHostReleaser& pinned_host_releaser();

// Memory of an allocator; the last owner hands it to the releaser. An error when the allocator has none or gives it
// badly aligned.
[[nodiscard]] tilekiln_status allocate_staging(const tilekiln_staging_allocator* allocator, size_t bytes,
                                               std::shared_ptr<void>* memory);

}  // namespace tilekiln
