// SPDX-License-Identifier: MIT
// The pool of threads: complete calls from many threads and from within each other, helpers off their caller's core, and on the
// cores that it may use.
#include "kernels/backends/cpu/parallel.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"
#include "kernels/backends/cpu/cores.h"
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

// Every unit of a call once, however many threads: in order, or each thread begins with its own.
void units_run_once() {
  for (const int threads : {1, 2, 3, 16, 40}) {
    for (const int64_t units : {0, 1, 2, 3, 5, 17, 64, 1000, 12345}) {
      for (const auto [scratch, stretches] : {std::pair<uint64_t, bool>{0, false}, {64, false}, {64, true}}) {
        Run run = {};
        run.threads = threads;
        std::vector<std::atomic<int>> ran(units);
        const auto range = [&, bytes = scratch](int64_t first, int64_t last, void* memory) {
          if (bytes > 0) *static_cast<int64_t*>(memory) = 1;
          for (; first < last; ++first) ++ran[first];
        };
        CHECK(run_ranges(run, units, 1e12, scratch, stretches, range) == TILEKILN_OK);
        bool once = true;
        for (const auto& count : ran) once = once && count == 1;
        CHECK(once);
      }
    }
  }
}

// The cores that the threads of a call ran on, and those that its helper may use.
struct Places {
  int patience = 50;
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
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience);
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
    Places second;
    if (second.run()) {
      ++seen;
      if (second.core != second.caller_core) ++apart;
      CHECK(CPU_EQUAL(&second.allowed, &all));
    }
  }
  printf("helpers came %d times, %d of them on another core\n", seen, apart);
  CHECK(2 * apart >= seen);
}

void give_cores(const cpu_set_t& cores) {
  CHECK(sched_setaffinity(0, sizeof(cores), &cores) == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the pool asks each millisecond
}

// Helpers of a caller that was pinned may use its core alone, those of the next all of its cores again.
void helpers_use_their_callers_cores() {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof(all), &all);
  for (int round = 0; round < 5; ++round) {
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    for (const cpu_set_t& cores : {one, all}) {
      give_cores(cores);
      Places place = {.patience = 2000};
      CHECK(place.run());
      CHECK(CPU_EQUAL(&place.allowed, &cores) && CPU_ISSET(place.core, &cores));
    }
  }
}

// Cores that somebody gave a helper from outside stay its own while its callers' are as they were.
void helpers_keep_what_they_are_given() {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof(all), &all);
  Places first = {.patience = 2000};
  CHECK(first.run());
  CPU_ZERO(&one);
  CPU_SET(first.core, &one);
  CHECK(sched_setaffinity(first.helper, sizeof(one), &one) == 0);
  for (int round = 0; round < 10; ++round) {
    Places next;
    if (next.run() && next.helper == first.helper) CHECK(CPU_EQUAL(&next.allowed, &one) && next.core == first.core);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  CHECK(sched_setaffinity(first.helper, sizeof(all), &all) == 0);
}

// Threads of one core would take turns: such a caller runs all units itself.
void one_core_is_one_thread() {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof(all), &all);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  give_cores(one);
  Run run = {};
  run.threads = 4;
  int here = 0;
  const pid_t caller = gettid();
  for (int round = 0; round < 20; ++round) {
    const auto range = [&](int64_t first, int64_t last, void*) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));  // time for others to come
      if (gettid() == caller) here += static_cast<int>(last - first);
    };
    CHECK(run_ranges(run, 16, 1e12, 0, false, range) == TILEKILN_OK);
  }
  CHECK(here == 20 * 16);
  give_cores(all);
}

// Counts of a helper's core taken by the system, in all and within a call.
struct Taken { long times, within; };
Taken calls_for(pid_t helper, std::chrono::milliseconds time) {
  struct Call {
    pid_t helper;
    std::atomic<int> next = 0;
    long within = 0, first = -1, last = 0;
    void work() {
      const bool helps = gettid() == helper;
      const long before = helps ? times_taken() : 0;
      while (next++ < 16) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(10);
        while (std::chrono::steady_clock::now() < until) {
        }
      }
      if (!helps) return;
      last = times_taken();
      within += last - before;
      if (first < 0) first = before;
    }
  } call = {helper};
  const auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) {
    call.next = 0;
    run_with_helpers(1, [](void* self) { static_cast<Call*>(self)->work(); }, &call);
  }
  return {call.last - call.first, call.within};
}

// A helper whose core another thread wants gives it up between calls: the system seldom takes it within one, where the caller
// would wait for a turn of the other.
void helpers_give_their_core_up_in_time() {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof(all), &all);
  Places place = {.patience = 2000};
  CHECK(place.run());
  if (CPU_COUNT(&all) < 2 || place.core == place.caller_core) return;
  CPU_ZERO(&one);
  CPU_SET(place.core, &one);
  CHECK(sched_setaffinity(place.helper, sizeof(one), &one) == 0);
  std::atomic<bool> end = false;
  std::thread other([&] {
    sched_setaffinity(0, sizeof(one), &one);
    while (!end) {
    }
  });
  // Others on the machine take it as they please: one of a few tries must show it.
  bool in_time = false;
  for (int tries = 0; tries < 10 && !in_time; ++tries) {
    const Taken taken = calls_for(place.helper, std::chrono::milliseconds(200));
    printf("a helper lost its core %ld times, %ld of them within a call\n", taken.times, taken.within);
    in_time = 2 * taken.within <= taken.times;
  }
  end = true;
  other.join();
  CHECK(sched_setaffinity(place.helper, sizeof(all), &all) == 0);
  CHECK(in_time);
}

}  // namespace

int main() {
  helpers_leave_their_callers_core();
  helpers_use_their_callers_cores();
  helpers_keep_what_they_are_given();
  one_core_is_one_thread();
  helpers_give_their_core_up_in_time();
  units_run_once();
  calls_are_complete();
  calls_within_calls();
  return check_result();
}
