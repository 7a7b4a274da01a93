// SPDX-License-Identifier: MIT
// Running the units of a call in as many threads as they are worth.
#pragma once
#include <algorithm>
#include <type_traits>

#include "kernels/backends/cpu/pool.h"
#include "kernels/backends/cpu/scratch.h"
#include "kernels/runtime/run.h"
#include "kernels/runtime/status.h"

namespace tilekiln {

// The least work, in multiply-adds, for which a further thread is woken. Waking costs 10 to 50 us; a core does 50 to
// 300 thousand million multiply-adds a second.
constexpr double work_per_thread = 4e6;

// Stretches of units that threads begin with.
constexpr int kStretches = 16;

// An address of this thread's own.
inline const void* this_thread() {
  static thread_local char mark;
  return &mark;
}

// The threads that `units` pieces of `work` multiply-adds together are worth.
inline int useful_threads(const Run& run, int64_t units, double work) {
  const int64_t useful = std::min<int64_t>(units, 1 + static_cast<int64_t>(std::min(work / work_per_thread, 1e6)));
  return static_cast<int>(std::min<int64_t>(run.threads, useful));
}

// Calls work() in `workers` threads, the caller's among them. It must be complete when the caller's call ends, even if
// no other came: claim from a shared counter.
template <class Work>
void run_in_threads(const Run& run, int workers, Work&& work) {
  using Callee = std::remove_reference_t<Work>;
  const auto once = [](void* self) { (*static_cast<Callee*>(self))(); };
  if (!run.lent) {
    run_with_helpers(workers > 1 && has_one_core() ? 0 : workers - 1, once, &work);
    return;
  }
  run.executor.parallel_for(
      run.executor.pool, workers, workers, [](void* self, int64_t, int32_t) { (*static_cast<Callee*>(self))(); },
      &work);
  // Whatever the executor left undone.
  work();
}

// Calls range(first, last, scratch) for ranges of [0, units), every number once, in as many threads as `work`
// multiply-adds are worth. The lowest numbers begin first. OUT_OF_MEMORY, before any range, when this thread has no
// scratch; another thread without leaves its share to the rest. The first 8 bytes of scratch are 0 when a thread begins with the
// call: engines that keep something from unit to unit know by them that nothing is of this call.
// Units without scratch move memory: there each thread begins with a stretch of its own and helps the others after it, so that the
// lines it fetches ahead are its own, and those of the next call lie in its caches. With `stretches` others do so too.
template <class Range>
[[nodiscard]] tilekiln_status run_ranges(const Run& run, int64_t units, double work, uint64_t scratch_bytes,
                                         bool stretches, Range&& range) {
  if (units == 0) return TILEKILN_OK;
  void* const own = thread_scratch(scratch_bytes);
  if (own == nullptr)
    return fail(TILEKILN_OUT_OF_MEMORY, "no memory for %llu bytes of scratch",
                static_cast<unsigned long long>(scratch_bytes));
  const auto begin = [&](void* scratch) {
    if (scratch_bytes >= sizeof(int64_t)) *static_cast<int64_t*>(scratch) = 0;
  };
  begin(own);
  const int workers = useful_threads(run, units, work);
  if (workers == 1) {
    range(0, units, own);
    return TILEKILN_OK;
  }
  // Many small units: claim several at once, but never so many that one claim could keep the others waiting.
  const int64_t claim = std::clamp<int64_t>(units / (workers * int64_t(64)), 1, 16);
  const int count = stretches || scratch_bytes == 0 ? std::min(workers, kStretches) : 1;
  const auto begin_of = [&](int stretch) { return units / count * stretch + units % count * stretch / count; };
  // Not std::atomic: its header costs each unit that includes this 0.16 s of compile time.
  struct alignas(64) Next { int64_t number; } next[kStretches];
  for (int i = 0; i < count; ++i) next[i].number = begin_of(i);
  int helpers = 0;
  const void* const caller = this_thread();
  run_in_threads(run, workers, [&] {
    const int arrived = this_thread() == caller ? 0 : __atomic_add_fetch(&helpers, 1, __ATOMIC_RELAXED);
    void* scratch = nullptr;
    for (int i = 0; i < count; ++i) {
      const int stretch = (arrived + i) % count;
      const int64_t end = begin_of(stretch + 1);
      int64_t& number = next[stretch].number;
      if (__atomic_load_n(&number, __ATOMIC_RELAXED) >= end) continue;
      if (scratch == nullptr) {
        scratch = thread_scratch(scratch_bytes);
        if (scratch == nullptr) return;
        begin(scratch);
      }
      for (;;) {
        const int64_t first = __atomic_fetch_add(&number, claim, __ATOMIC_RELAXED);
        if (first >= end) break;
        range(first, std::min(first + claim, end), scratch);
      }
    }
  });
  return TILEKILN_OK;
}

}  // namespace tilekiln
