#include "kernels/backends/cpu/pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

#include "kernels/runtime/environment.h"
#include "kernels/runtime/forks.h"

namespace tilekiln {
namespace {

// One call of run_with_helpers, on its caller's stack.
struct Job {
  void (*work)(void*);
  void* context;
  int wanted;                   // helpers that may still join; under the pool's lock
  std::atomic<int> active = 0;  // helpers at work; changed under the lock, so that the caller may sleep on it
  Job* next = nullptr;
};

class Pool {
 public:
  void run(int helpers, void (*work)(void*), void* context) {
    Job job = {work, context, helpers};
    open(job, helpers);
    work(context);
    close(job);
  }

 private:
  void open(Job& job, int helpers) {
    int asleep = 0;
    {
      std::lock_guard lock(mutex_);
      // The last in the list, so that helpers go to the oldest job first.
      Job** last = &jobs_;
      while (*last != nullptr) last = &(*last)->next;
      *last = &job;
      while (threads_ < helpers && start()) {
      }
      posted_.fetch_add(1, std::memory_order_relaxed);
      asleep = asleep_;
    }
    if (asleep == 0) return;
    if (helpers >= asleep) return wake_.notify_all();
    for (int i = 0; i < helpers; ++i) wake_.notify_one();
  }

  void close(Job& job) {
    {
      std::lock_guard lock(mutex_);
      Job** link = &jobs_;
      while (*link != &job) link = &(*link)->next;
      *link = job.next;
    }
    if (spin([&] { return job.active.load(std::memory_order_acquire) == 0; })) return;
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return job.active.load(std::memory_order_relaxed) == 0; });
  }

  // Under the lock. False when the system gives no more threads: the call then runs on those there are.
  bool start() {
    if (threads_ >= max_threads) return false;
    try {
      std::thread([this] { serve(); }).detach();
    } catch (...) {
      return false;
    }
    ++threads_;
    return true;
  }

  Job* claim() {
    for (Job* job = jobs_; job != nullptr; job = job->next) {
      if (job->wanted > 0) return job;
    }
    return nullptr;
  }

  [[noreturn]] void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = claim();
      if (job == nullptr) {
        const uint32_t seen = posted_.load(std::memory_order_relaxed);
        lock.unlock();
        const bool more = spin([&] { return posted_.load(std::memory_order_relaxed) != seen; });
        lock.lock();
        if (more || claim() != nullptr) continue;
        ++asleep_;
        wake_.wait(lock, [&] { return claim() != nullptr; });
        --asleep_;
        continue;
      }
      --job->wanted;
      job->active.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      job->work(job->context);
      lock.lock();
      // The job may be gone as soon as its last helper has left: touch nothing of it after this.
      if (job->active.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* jobs_ = nullptr;
  int threads_ = 0, asleep_ = 0;
  std::atomic<uint32_t> posted_ = 0;
};

// Never destroyed: threads may sleep in it while the process exits.
alignas(Pool) unsigned char storage[sizeof(Pool)];

Pool& pool() {
  static Pool* const result = new (storage) Pool;
  return *result;
}

// In the child only the forking thread exists. Whatever the others held is left as it is and a new pool is put in its place.
void start_afresh() { new (storage) Pool; }

void watch() {
  static const int watching = (pool(), watch_forks(), pthread_atfork(nullptr, nullptr, start_afresh));
  static_cast<void>(watching);
}

}  // namespace

void run_with_helpers(int helpers, void (*work)(void*), void* context) noexcept {
  if (helpers <= 0) return work(context);
  watch();
  pool().run(helpers, work, context);
}

}  // namespace tilekiln
