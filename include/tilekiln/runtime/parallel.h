// Running the units of a call in as many threads as they are worth.
#pragma once
#include <algorithm>
#include <type_traits>

#include "tilekiln/runtime/attention.h"
#include "tilekiln/runtime/pool.h"
#include "tilekiln/runtime/scratch.h"

namespace tilekiln::fmha {

// What a further thread must have to do before it is woken, in multiply-adds. Waking costs 10 to 50 us; a core does
// 50 to 300 thousand million of them a second.
constexpr double work_per_thread = 4e6;

// The threads that `units` pieces of `work` multiply-adds together are worth.
inline int useful_threads(const AttentionCall& call, i64 units, double work) {
  const i64 useful = std::min<i64>(units, 1 + static_cast<i64>(std::min(work / work_per_thread, 1e6)));
  return static_cast<int>(std::min<i64>(call.threads, useful));
}

// Calls work() in `workers` threads, the caller's among them. It must be complete when the caller's call ends, even if
// no other came: claim from a shared counter.
template <class Work>
void run_in_threads(const AttentionCall& call, int workers, Work&& work) {
  using Callee = std::remove_reference_t<Work>;
  const auto once = [](void* self) { (*static_cast<Callee*>(self))(); };
  if (!call.lent) {
    run_with_helpers(workers - 1, once, &work);
    return;
  }
  call.executor.parallel_for(
      call.executor.pool, workers, workers, [](void* self, int64_t, int32_t) { (*static_cast<Callee*>(self))(); },
      &work);
  // Whatever the executor left undone.
  work();
}

// Calls unit(number, scratch) for every number in [0, units), each once, in as many threads as `work` multiply-adds are
// worth. The lowest numbers begin first. OUT_OF_MEMORY, before any unit, when this thread has no scratch; another
// thread without leaves its share to the rest.
template <class Unit>
[[nodiscard]] tilekiln_status run_units(const AttentionCall& call, i64 units, double work, u64 scratch_bytes,
                                        Unit&& unit) {
  if (units == 0) return TILEKILN_OK;
  void* const own = thread_scratch(scratch_bytes);
  if (own == nullptr) return fail(TILEKILN_OUT_OF_MEMORY, "no memory for %llu bytes of scratch", scratch_bytes);
  const int workers = useful_threads(call, units, work);
  if (workers == 1) {
    for (i64 number = 0; number < units; ++number) unit(number, own);
    return TILEKILN_OK;
  }
  // Many small units: claim several at once, but never so many that one claim could keep the others waiting.
  const i64 claim = std::clamp<i64>(units / (workers * i64(64)), 1, 16);
  // Not std::atomic: its header costs each unit that includes this 0.16 s of compile time.
  alignas(64) i64 next = 0;
  run_in_threads(call, workers, [&] {
    if (__atomic_load_n(&next, __ATOMIC_RELAXED) >= units) return;
    void* const scratch = thread_scratch(scratch_bytes);
    if (scratch == nullptr) return;
    for (;;) {
      const i64 first = __atomic_fetch_add(&next, claim, __ATOMIC_RELAXED);
      if (first >= units) return;
      const i64 last = std::min(first + claim, units);
      for (i64 number = first; number < last; ++number) unit(number, scratch);
    }
  });
  return TILEKILN_OK;
}

// The same for a caller that has made sure of its own thread's scratch.
template <class Unit>
void for_each_unit(const AttentionCall& call, i64 units, double work, size_t scratch_bytes, Unit&& unit) {
  static_cast<void>(run_units(call, units, work, scratch_bytes, unit));
}

}  // namespace tilekiln::fmha
