#include "kernels/backends/cpu/pool.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

#include "kernels/runtime/environment.h"
#include "kernels/runtime/forks.h"

namespace tilekiln {
namespace {

using Clock = std::chrono::steady_clock;

// Waking a thread takes 20 to 50 us where its core sleeps too. Waiting as long without sleep costs at most twice the best that could
// be done; helpers wait so where calls lately followed each other, and otherwise for a moment: processor time of threads that do
// nothing shows.
constexpr std::chrono::microseconds kWakeTime{50}, kMoment{4};
// A gap between calls, the wake-up in it, after which helpers expect the next as soon.
constexpr std::chrono::microseconds kDense{100};
// Moving to another core takes 25 us: not more often than this.
constexpr std::chrono::microseconds kBetweenMoves{1000};

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits without sleeping, at most for `longest`. Tells whether `ready` held.
template <class Ready> bool spin(Clock::duration longest, Ready&& ready) {
  if (ready()) return true;
  const auto end = Clock::now() + longest;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (Clock::now() < end);
  return ready();
}

// The core on which this thread runs; -1 where the system does not tell.
int this_core() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

// Moves this thread from `core` to another of those it may run on, and leaves it that choice as it was. The system places a
// thread that wakes on the core of its waker more often than one would wish: two threads of a call then take turns.
void leave_core([[maybe_unused]] int core) {
#if defined(__linux__)
  cpu_set_t allowed, others, now;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  others = allowed;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return;
  // An affinity that somebody else has set meanwhile stays.
  if (sched_getaffinity(0, sizeof(now), &now) != 0 || !CPU_EQUAL(&now, &others)) return;
  sched_setaffinity(0, sizeof(allowed), &allowed);
#endif
}

// The lock, which others hold for tens of nanoseconds: worth a wait without sleep.
std::unique_lock<std::mutex> hold(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  for (int i = 0; i < 100 && !lock.owns_lock(); ++i) {
    pause();
    lock.try_lock();
  }
  if (!lock.owns_lock()) lock.lock();
  return lock;
}

// One call of run_with_helpers, on its caller's stack.
struct Job {
  void (*work)(void*);
  void* context;
  int core;                          // where the caller was
  int wanted;                        // helpers that may still join; under the pool's lock
  std::atomic<int> active = 0;       // helpers at work; changed under the lock, so that the caller may sleep on it
  std::atomic<bool> beside = false;  // a helper is on the caller's core: it ends when the caller sleeps
  Job* next = nullptr;
};

class Pool {
 public:
  void run(int helpers, void (*work)(void*), void* context) {
    Job job = {work, context, this_core(), helpers};
    open(job, helpers);
    work(context);
    close(job);
  }

 private:
  void open(Job& job, int helpers) {
    int asleep = 0;
    {
      const auto lock = hold(mutex_);
      // The last in the list, so that helpers go to the oldest job first.
      Job** last = &jobs_;
      while (*last != nullptr) last = &(*last)->next;
      *last = &job;
      while (threads_ < helpers && start()) {
      }
      asleep = asleep_;
    }
    // After the lock, so that those who see it find that free.
    posted_.fetch_add(1, std::memory_order_relaxed);
    if (asleep == 0) return;
    if (helpers >= asleep) return wake_.notify_all();
    for (int i = 0; i < helpers; ++i) wake_.notify_one();
  }

  void close(Job& job) {
    {
      const auto lock = hold(mutex_);
      Job** link = &jobs_;
      while (*link != &job) link = &(*link)->next;
      *link = job.next;
    }
    const auto left = [&] { return job.active.load(std::memory_order_acquire) == 0; };
    const bool beside = job.beside.load(std::memory_order_relaxed);
    if (spin(beside ? Clock::duration(0) : kWakeTime, left)) return;
    std::unique_lock lock(mutex_);
    done_.wait(lock, left);
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
    Clock::duration patience = kMoment;
    Clock::time_point moved = {};
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = claim();
      if (job == nullptr) {
        const Clock::time_point since = Clock::now();
        wait(lock, patience);
        patience = Clock::now() - since < kDense ? kWakeTime : kMoment;
        continue;
      }
      const bool beside = this_core() == job->core && job->core >= 0;
      if (beside && Clock::now() - moved >= kBetweenMoves) {
        const int core = job->core;
        lock.unlock();
        leave_core(core);
        moved = Clock::now();
        lock = hold(mutex_);
        continue;
      }
      if (beside) job->beside.store(true, std::memory_order_relaxed), patience = kMoment;
      --job->wanted;
      job->active.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      job->work(job->context);
      lock = hold(mutex_);
      // The job may be gone as soon as its last helper has left: touch nothing of it after this.
      if (job->active.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
    }
  }

  // Until there may be a job, for `patience` without sleep.
  void wait(std::unique_lock<std::mutex>& lock, Clock::duration patience) {
    const uint32_t seen = posted_.load(std::memory_order_relaxed);
    lock.unlock();
    const bool more = spin(patience, [&] { return posted_.load(std::memory_order_relaxed) != seen; });
    lock = hold(mutex_);
    if (more || claim() != nullptr) return;
    ++asleep_;
    wake_.wait(lock, [&] { return claim() != nullptr; });
    --asleep_;
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
