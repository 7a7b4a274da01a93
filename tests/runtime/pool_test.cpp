// The pool of threads: complete calls from many threads and from within each other, helpers off their caller's core, and never
// outside the cores they were given.
#include "kernels/backends/cpu/parallel.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"
#include "kernels/runtime/backend.h"

using namespace tilekiln;

const Backend tilekiln::cpu_backend = {};  // units run without one

namespace {

// Numbers claimed by whoever comes.
struct Count {
  int most;
  std::atomic<int> next = 0, done = 0;
  void run(int helpers) {
    run_with_helpers(helpers, [](void* self) { static_cast<Count*>(self)->claim(); }, this);
  }
  void claim() {
    while (next++ < most) ++done;
  }
};

void calls_are_complete() {
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int helpers = 0; helpers < 4; ++helpers) {
    threads.emplace_back([&wrong, helpers] {
      for (int round = 0; round < 300; ++round) {
        Count count = {round % 50};
        count.run(helpers);
        if (count.done != count.most) ++wrong;
        // Some wait long enough for helpers to sleep.
        if (round % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

void calls_within_calls() {
  struct Outer { std::atomic<int> next = 0, done = 0; } outer;
  run_with_helpers(
      3,
      [](void* self) {
        Outer& all = *static_cast<Outer*>(self);
        while (all.next++ < 20) {
          Count count = {30};
          count.run(3);
          all.done += count.done;
        }
      },
      &outer);
  CHECK(outer.done == 20 * 30);
}

// Every unit of a call once, however many threads: with scratch in order, without it each thread begins with its own.
void units_run_once() {
  for (const int threads : {1, 2, 3, 16, 40}) {
    for (const int64_t units : {0, 1, 2, 3, 5, 17, 64, 1000, 12345}) {
      for (const uint64_t scratch : {0, 64}) {
        Run run = {};
        run.threads = threads;
        std::vector<std::atomic<int>> ran(units);
        const auto range = [&](int64_t first, int64_t last, void* memory) {
          if (scratch > 0) *static_cast<int64_t*>(memory) = 1;
          for (; first < last; ++first) ++ran[first];
        };
        CHECK(run_ranges(run, units, 1e12, scratch, range) == TILEKILN_OK);
        bool once = true;
        for (const auto& count : ran) once = once && count == 1;
        CHECK(once);
      }
    }
  }
}

// The cores that the threads of a call ran on, and those that its helper may use.
struct Places {
  pid_t caller = gettid();
  int caller_core = -1;
  std::atomic<bool> came = false;
  int core = -1;
  pid_t helper = 0;
  cpu_set_t allowed = {};
  bool run() {
    caller_core = sched_getcpu();
    run_with_helpers(1, [](void* self) { static_cast<Places*>(self)->look(); }, this);
    return came;
  }
  void look() {
    if (gettid() != caller) {
      core = sched_getcpu();
      helper = gettid();
      sched_getaffinity(0, sizeof(allowed), &allowed);
      came = true;
      return;
    }
    // Busy, as callers are: the core is not given up.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (!came && std::chrono::steady_clock::now() < end) {
    }
  }
};

void helpers_leave_their_callers_core() {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof(all), &all);
  if (CPU_COUNT(&all) < 2) return;
  int seen = 0, apart = 0;
  for (int round = 0; round < 20; ++round) {
    Places first;
    if (!first.run()) continue;
    // The helper goes to this core, as a system that wakes it there puts it, and may use all again.
    CPU_ZERO(&one);
    CPU_SET(first.caller_core, &one);
    CHECK(sched_setaffinity(first.helper, sizeof(one), &one) == 0);
    CHECK(sched_setaffinity(first.helper, sizeof(all), &all) == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    sched_setaffinity(0, sizeof(one), &one);
    Places second;
    if (second.run()) {
      ++seen;
      if (second.core != second.caller_core) ++apart;
      CHECK(CPU_EQUAL(&second.allowed, &all));
    }
    sched_setaffinity(0, sizeof(all), &all);
  }
  printf("helpers came %d times, %d of them on another core\n", seen, apart);
  CHECK(2 * apart >= seen);
}

void helpers_stay_where_they_may() {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof(all), &all);
  Places first;
  if (!first.run()) return;
  CPU_ZERO(&one);
  CPU_SET(first.caller_core, &one);
  CHECK(sched_setaffinity(first.helper, sizeof(one), &one) == 0);
  sched_setaffinity(0, sizeof(one), &one);
  for (int round = 0; round < 10; ++round) {
    Places next;
    if (next.run() && next.helper == first.helper)
      CHECK(CPU_EQUAL(&next.allowed, &one) && next.core == next.caller_core);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  sched_setaffinity(0, sizeof(all), &all);
}

}  // namespace

int main() {
  helpers_leave_their_callers_core();
  helpers_stay_where_they_may();
  units_run_once();
  calls_are_complete();
  calls_within_calls();
  return check_result();
}
