// Running the units of a call in as many threads as they are worth.
#pragma once
#include <algorithm>
#include <atomic>
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

// unit(i, scratch) for every i in [0, units), in the threads that `work` multiply-adds are worth; the first is claimed
// first.
template <class Unit>
void for_each_unit(const AttentionCall& call, i64 units, double work, size_t scratch_bytes, Unit&& unit) {
  if (units == 0) return;
  std::atomic<i64> next = 0;
  auto claims = [&] {
    if (next.load(std::memory_order_relaxed) >= units) return;
    void* const scratch = thread_scratch(scratch_bytes);
    // A thread without memory leaves its units to the others; the caller has made sure that its own has it.
    if (scratch == nullptr) return;
    for (i64 i; (i = next.fetch_add(1, std::memory_order_relaxed)) < units;) unit(i, scratch);
  };
  const int workers = useful_threads(call, units, work);
  if (workers == 1) {
    claims();
  } else {
    run_in_threads(call, workers, claims);
  }
}

}  // namespace tilekiln::fmha
