// SPDX-License-Identifier: MIT
// The steps of a call, in stream order, on the device of its arrays.
#pragma once
#include <type_traits>

#include "kernels/runtime/backend.h"
#include "kernels/runtime/run.h"
#include "kernels/runtime/stream.h"

namespace tilekiln {

// Checks that the host code of a call can trust the engines of its device: on a backend with kernels of its own they are of
// another type. A type of call, or of a call's problem, whose `launches_kernels` is true looks which it has before it reads one.
template <class Call>
[[nodiscard]] tilekiln_status check_engines(const Call& call, const char* name) {
  if constexpr (requires { requires Call::launches_kernels; }) return TILEKILN_OK;
  const Run& run = call;
  if (__builtin_expect(run.backend == &cpu_backend, 1) || run.backend->takes_units) return TILEKILN_OK;
  return fail(TILEKILN_INTERNAL, "the host code of %s launches no kernels, and %s has nothing else", name,
              run.backend->name);
}

// One stage: the engine of `choice` over `problem`. An engine on the host runs unit(number, scratch) for every number in
// [0, units), in as many threads as `work` multiply-adds are worth. stretches: Launch's.
template <class Problem, class Unit>
[[nodiscard]] tilekiln_status launch_stage(const Run& run, const Choice& choice, const Problem& problem, int64_t units,
                                           double work, uint64_t scratch_bytes, Unit&& unit, bool stretches = false) {
  static_assert(std::is_trivially_copyable_v<Problem>, "a problem is plain data: kernels take it by value");
  using Callee = std::remove_reference_t<Unit>;
  const auto range = [](void* context, int64_t first, int64_t last, void* scratch) {
    Callee& one = *static_cast<Callee*>(context);
    for (int64_t number = first; number < last; ++number) one(number, scratch);
  };
  return run.backend->launch(
      run.device, run.native,
      {&run, &choice, &problem, sizeof(Problem), units, work, scratch_bytes, stretches, range, &unit});
}

// One stage on a backend with kernels of its own: the engine of `choice` is of its type, and turns `problem` into what its
// kernel takes.
template <class Problem>
[[nodiscard]] tilekiln_status launch_kernel(const Run& run, const Choice& choice, const Problem& problem) {
  static_assert(std::is_trivially_copyable_v<Problem>, "a problem is plain data: kernels take it by value");
  return run.backend->launch(run.device, run.native, {&run, &choice, &problem, sizeof(Problem)});
}

// Memory of a call on its device, given back when this ends.
class CallMemory {
 public:
  CallMemory() = default;
  CallMemory(const CallMemory&) = delete;
  ~CallMemory() {
    if (run_ != nullptr) static_cast<void>(run_->backend->memory(run_->device, run_->native, 0, &memory_));
  }
  // `run` must outlive it. Whatever the memory held, unless `byte` from 0 to 255 fills it.
  [[nodiscard]] tilekiln_status get(const Run& run, size_t bytes, int byte = -1) {
    TILEKILN_TRY(run.backend->memory(run.device, run.native, bytes, &memory_));
    run_ = &run;
    return byte < 0 ? TILEKILN_OK : run.backend->fill(run.device, run.native, memory_.data, byte, bytes);
  }
  explicit operator bool() const { return run_ != nullptr; }
  template <class T> T* as() const { return static_cast<T*>(memory_.data); }

 private:
  const Run* run_ = nullptr;
  DeviceMemory memory_ = {};
};

// Runs a call now, or hands it to its stream: as a whole, which takes it over, or its steps one by one (call.native).
template <class Call, tilekiln_status (*run)(Call&)>
[[nodiscard]] tilekiln_status run_in_stream(Call& call) {
  if (call.stream == nullptr || call.native != nullptr) return run(call);
  struct Taken {
    Call* call;
    ~Taken() { delete call; }
  };
  const auto own = [](void* context) {
    const Taken taken = {static_cast<Call*>(context)};
    return run(*taken.call);
  };
  tilekiln_stream& call_stream = *call.stream;
  Taken taken = {new Call(static_cast<Call&&>(call))};
  TILEKILN_TRY(taken.call->backend->host(taken.call->device, native_of(call_stream), own, taken.call));
  taken.call = nullptr;
  return TILEKILN_OK;
}

}  // namespace tilekiln
