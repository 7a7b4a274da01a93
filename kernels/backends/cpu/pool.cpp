// SPDX-License-Identifier: MIT
#include "kernels/backends/cpu/pool.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

#include "kernels/backends/cpu/cores.h"
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
// The longest turn of a helper whose core somebody else wants too: it gives it up between jobs then, before the system takes it in the
// middle of one and lets the caller wait for a turn of the other.
constexpr std::chrono::microseconds kTurn{500};
// The cores of a caller are not asked for more often than this.
constexpr std::chrono::microseconds kBetweenReads{1000};
// A helper whose core was taken expects that again for so long.
constexpr std::chrono::milliseconds kContested{100};

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

// The cores of this thread, asked for again after a millisecond: the question takes .2 us.
const Cores& my_cores() {
  static thread_local Cores cores;
  static thread_local Clock::time_point read = {};
  const Clock::time_point now = Clock::now();
  if (now - read >= kBetweenReads) cores.read(), read = now;
  return cores;
}

// A helper's knowledge of the others who want its core.
class Turns {
 public:
  // Looks at the clock after a job.
  void look() {
    const Clock::time_point now = Clock::now();
    if (now - looked_ < kTurn) return;
    looked_ = now;
    const long taken = times_taken();
    if (taken != taken_) contested_ = now + kContested;
    taken_ = taken;
  }
  // Tells, before a job, whether to give the core up first.
  bool over() const {
    const Clock::time_point now = Clock::now();
    return now < contested_ && now - began_ >= kTurn;
  }
  void give_up() {
    const Clock::time_point before = Clock::now();
    std::this_thread::yield();
    began_ = Clock::now();
    if (began_ - before > kMoment) contested_ = began_ + kContested;
    taken_ = times_taken();
  }
  bool contested() const { return Clock::now() < contested_; }
  void slept() { began_ = Clock::now(); }

 private:
  Clock::time_point looked_ = {}, began_ = {}, contested_ = {};
  long taken_ = 0;
};

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
  Cores cores;                       // those of the caller, which its helpers use
  int core;                          // where the caller was
  int wanted;                        // helpers that may still join; under the pool's lock
  std::atomic<int> active = 0;       // helpers at work; changed under the lock, so that the caller may sleep on it
  std::atomic<bool> beside = false;  // a helper is on the caller's core: it ends when the caller sleeps
  Job* next = nullptr;
};

class Pool {
 public:
  void run(int helpers, void (*work)(void*), void* context) {
    Job job = {work, context, my_cores(), this_core(), helpers};
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
    // Posted after the lock, so that those who see it find that free.
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
    Turns turns;
    Cores cores;  // of the caller that was helped last
    cores.read();
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = claim();
      if (job == nullptr) {
        const Clock::time_point since = Clock::now();
        if (wait(lock, patience)) turns.slept();
        patience = Clock::now() - since < kDense && !turns.contested() ? kWakeTime : kMoment;
        continue;
      }
      if (!(job->cores == cores)) {
        cores = job->cores;
        lock.unlock();
        cores.use();
        lock = hold(mutex_);
        continue;
      }
      if (turns.over()) {
        lock.unlock();
        turns.give_up();
        lock = hold(mutex_);
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
      lock.unlock();
      turns.look();
      lock = hold(mutex_);
    }
  }

  // Waits until there may be a job, for `patience` without sleep. Tells whether it slept.
  bool wait(std::unique_lock<std::mutex>& lock, Clock::duration patience) {
    const uint32_t seen = posted_.load(std::memory_order_relaxed);
    lock.unlock();
    const bool more = spin(patience, [&] { return posted_.load(std::memory_order_relaxed) != seen; });
    lock = hold(mutex_);
    if (more || claim() != nullptr) return false;
    ++asleep_;
    wake_.wait(lock, [&] { return claim() != nullptr; });
    --asleep_;
    return true;
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

// Starts afresh in the child, where only the forking thread exists. Whatever the others held is left as it is and a new pool is put in
// its place.
void start_afresh() { new (storage) Pool; }

void watch() {
  static const int watching = (pool(), watch_forks(), pthread_atfork(nullptr, nullptr, start_afresh));
  static_cast<void>(watching);
}

}  // namespace

bool has_one_core() noexcept { return my_cores().single(); }

void run_with_helpers(int helpers, void (*work)(void*), void* context) noexcept {
  if (helpers <= 0) return work(context);
  watch();
  pool().run(helpers, work, context);
}

}  // namespace tilekiln
