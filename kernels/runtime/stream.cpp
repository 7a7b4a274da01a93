// SPDX-License-Identifier: MIT
#include "kernels/runtime/stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "kernels/runtime/backend.h"
#include "kernels/runtime/forks.h"

namespace tilekiln {

// Tasks of one stream and the thread that runs them. A forked child leaves its parent's queue as it is, not even
// destroyed: its locks may be held by threads that do not exist there.
struct StreamQueue {
  const uint32_t forks = fork_count();
  std::mutex mutex;
  std::condition_variable posted, progress;
  StreamTask* first = nullptr;
  StreamTask* last = nullptr;
  uint64_t enqueued = 0, ended = 0;  // tasks so far
  bool stop = false;
  tilekiln_status status = TILEKILN_OK;
  std::string error;
  std::thread worker;

  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      posted.wait(lock, [&] { return first != nullptr || stop; });
      if (first == nullptr) return;
      StreamTask* const task = first;
      first = task->next;
      if (first == nullptr) last = nullptr;
      lock.unlock();
      tilekiln_status result = TILEKILN_OK;
      try {
        result = task->run();
      } catch (...) {
        result = fail_exception();
      }
      delete task;
      lock.lock();
      if (result != TILEKILN_OK && status == TILEKILN_OK) {
        status = result;
        error = error_text();
      }
      ++ended;
      progress.notify_all();
    }
  }
  // Under the lock: a worker that waited for its own work would wait for ever.
  tilekiln_status check_not_worker(const char* what) const {
    if (worker.get_id() != std::this_thread::get_id()) return TILEKILN_OK;
    return fail_argument("stream", "was told to %s from its own worker, must be told from another thread", what);
  }
  // Under the lock: the first error since the last time, which it forgets.
  tilekiln_status take_error() {
    const tilekiln_status result = status;
    if (result != TILEKILN_OK) set_error_text(error.c_str());
    status = TILEKILN_OK;
    return result;
  }
};

namespace {

using Queue = StreamQueue;

constexpr uint64_t live = 0x6d61657274736b74;  // a stream starts with it until it is destroyed

class HostTask : public StreamTask {
 public:
  HostTask(void (*host)(void*), void* context) : host_(host), context_(context) {}
  tilekiln_status run() override {
    host_(context_);
    return TILEKILN_OK;
  }

 private:
  void (*host_)(void*);
  void* context_;
};

}  // namespace
}  // namespace tilekiln

struct tilekiln_stream {
  uint64_t magic = tilekiln::live;
  std::atomic<tilekiln::StreamQueue*> queue = nullptr;  // null: wrapped
  const tilekiln::Backend* backend = &tilekiln::cpu_backend;
  tilekiln::Device device;
  void* native = nullptr;  // wrapped, or null
};

namespace tilekiln {
namespace {

// Waits until a wrapped stream has come to a mark, which counts nothing there: until it is idle.
tilekiln_status wait_wrapped(const tilekiln_stream& stream, int64_t nanoseconds, uint64_t* mark, int32_t* passed) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::nanoseconds(nanoseconds);
  *mark = 1;
  for (;;) {
    bool idle = false;
    TILEKILN_TRY(stream.backend->query(stream.device, stream.native, &idle));
    *passed = idle ? 1 : 0;
    if (idle || Clock::now() >= end) return TILEKILN_OK;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// The queue, made anew in a forked child: what was enqueued before the fork runs in the parent only.
Queue& queue_of(tilekiln_stream& stream) {
  Queue* queue = stream.queue.load(std::memory_order_acquire);
  if (queue->forks == fork_count()) return *queue;
  Queue* const fresh = new Queue;
  if (stream.queue.compare_exchange_strong(queue, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *queue;
}

}  // namespace

tilekiln_status check_stream(const tilekiln_stream* stream) {
  if (stream != nullptr && reinterpret_cast<uint64_t>(stream) % alignof(tilekiln_stream) == 0 &&
      stream->magic == live) {
    return TILEKILN_OK;
  }
  return fail_argument("stream",
                       stream == nullptr
                           ? "was null, must be one that tilekiln_stream_create made"
                           : "was no live stream, must be one that tilekiln_stream_create made and nobody destroyed");
}

tilekiln_status check_stream_of(const tilekiln_stream& stream, Run* run) {
  const bool wrapped = stream.native != nullptr;
  if (wrapped ? stream.device == run->device : run->backend->takes_calls) {
    if (!run->backend->takes_calls) run->native = stream.native;
    return TILEKILN_OK;
  }
  char was[48], must[48];
  device_text(run->device, must, sizeof(must));
  if (!wrapped)
    return fail_argument(
        "stream", "was a queue of the host, must be a stream of %s, where the arrays are (tilekiln_stream_wrap)", must);
  return fail_argument("stream", "was a stream of %s, must be one of %s, where the arrays are",
                       device_text(stream.device, was, sizeof(was)), must);
}

void* native_of(tilekiln_stream& stream) { return stream.native != nullptr ? stream.native : &stream; }

void enqueue(tilekiln_stream& stream, StreamTask* task) {
  Queue& queue = queue_of(stream);
  std::lock_guard lock(queue.mutex);
  if (!queue.worker.joinable()) {
    try {
      queue.worker = std::thread([&queue] { queue.serve(); });
    } catch (...) {
      delete task;
      throw;
    }
  }
  (queue.last == nullptr ? queue.first : queue.last->next) = task;
  queue.last = task;
  ++queue.enqueued;
  queue.posted.notify_one();
}

}  // namespace tilekiln

using namespace tilekiln;

tilekiln_status tilekiln_stream_create(tilekiln_stream** stream) {
  if (stream == nullptr) return fail_argument("stream", "was null, must point to where the stream is put");
  try {
    watch_forks();
    std::unique_ptr<Queue> queue(new Queue);
    *stream = new tilekiln_stream;
    (*stream)->queue = queue.release();
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_stream_wrap(int32_t device_type, int32_t device_id, void* native, tilekiln_stream** stream) {
  if (stream == nullptr) return fail_argument("stream", "was null, must point to where the stream is put");
  const Device device = {device_type, device_id};
  const Backend* const backend = backend_of(device_type);
  char was[48], must[48];
  device_text(device, was, sizeof(was));
  if (backend == &cpu_backend)
    return fail_argument("device_type",
                         "was %d (%s), must be that of a device: tilekiln_stream_create makes the host's streams",
                         device_type, was);
  if (backend == nullptr) {
    return fail_argument("device_type", "was %d (%s), must be %s", device_type, was,
                         known_devices(true, must, sizeof(must)));
  }
  void* const wrapped = native != nullptr ? native : backend->default_stream;
  if (wrapped == nullptr) return fail_argument("native", "was null, must be a stream of %s", was);
  try {
    *stream = new tilekiln_stream;
    (*stream)->backend = backend;
    (*stream)->device = device;
    (*stream)->native = wrapped;
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_stream_destroy(tilekiln_stream* stream) {
  if (stream == nullptr) return TILEKILN_OK;
  TILEKILN_TRY(check_stream(stream));
  if (stream->native != nullptr) {  // the caller's still
    stream->magic = 0;
    delete stream;
    return TILEKILN_OK;
  }
  try {
    Queue& queue = queue_of(*stream);
    {
      std::lock_guard lock(queue.mutex);
      TILEKILN_TRY(queue.check_not_worker("destroy itself"));
      queue.stop = true;
      queue.posted.notify_one();
    }
    if (queue.worker.joinable()) queue.worker.join();
    const tilekiln_status status = queue.take_error();
    stream->magic = 0;
    delete &queue;
    delete stream;
    return status;
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_stream_synchronize(tilekiln_stream* stream) {
  TILEKILN_TRY(check_stream(stream));
  try {
    if (stream->native != nullptr) return stream->backend->wait(stream->device, stream->native);
    Queue& queue = queue_of(*stream);
    std::unique_lock lock(queue.mutex);
    TILEKILN_TRY(queue.check_not_worker("synchronise"));
    const uint64_t last = queue.enqueued;
    queue.progress.wait(lock, [&] { return queue.ended >= last; });
    return queue.take_error();
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_stream_wait(tilekiln_stream* stream, int64_t nanoseconds, uint64_t* mark, int32_t* passed) {
  TILEKILN_TRY(check_stream(stream));
  if (nanoseconds < 0)
    return fail_argument("nanoseconds", "was %lld, must be 0 or more", static_cast<long long>(nanoseconds));
  if (mark == nullptr) return fail_argument("mark", "was null, must point to 0 or to what an earlier call put there");
  if (passed == nullptr) return fail_argument("passed", "was null, must point to where the answer is put");
  try {
    constexpr int64_t longest = 3600000000000;  // no overflow of the clock, and nobody notices
    nanoseconds = std::min(nanoseconds, longest);
    if (stream->native != nullptr) return wait_wrapped(*stream, nanoseconds, mark, passed);
    Queue& queue = queue_of(*stream);
    std::unique_lock lock(queue.mutex);
    TILEKILN_TRY(queue.check_not_worker("wait for itself"));
    if (*mark == 0) *mark = queue.enqueued;
    // A mark of before a fork is past all that the queue of the child knows.
    const auto has = [&] { return queue.ended >= *mark || *mark > queue.enqueued; };
    *passed = queue.progress.wait_for(lock, std::chrono::nanoseconds(nanoseconds), has) ? 1 : 0;
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_stream_query(tilekiln_stream* stream, int32_t* idle) {
  TILEKILN_TRY(check_stream(stream));
  if (idle == nullptr) return fail_argument("idle", "was null, must point to where the answer is put");
  try {
    if (stream->native != nullptr) {
      bool answer = false;
      TILEKILN_TRY(stream->backend->query(stream->device, stream->native, &answer));
      *idle = answer ? 1 : 0;
      return TILEKILN_OK;
    }
    Queue& queue = queue_of(*stream);
    std::lock_guard lock(queue.mutex);
    *idle = queue.ended == queue.enqueued ? 1 : 0;
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_stream_launch_host(tilekiln_stream* stream, void (*host)(void*), void* context) {
  TILEKILN_TRY(check_stream(stream));
  if (host == nullptr) return fail_argument("host", "was null, must be a function");
  try {
    if (stream->native != nullptr) {
      struct Function {
        void (*host)(void*);
        void* context;
      };
      const auto once = [](void* self) {
        const std::unique_ptr<Function> function(static_cast<Function*>(self));
        function->host(function->context);
        return tilekiln_status(TILEKILN_OK);
      };
      auto function = std::make_unique<Function>(Function{host, context});
      TILEKILN_TRY(stream->backend->host(stream->device, stream->native, once, function.get()));
      static_cast<void>(function.release());
      return TILEKILN_OK;
    }
    enqueue(*stream, new HostTask(host, context));
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}
