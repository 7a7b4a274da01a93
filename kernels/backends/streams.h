// SPDX-License-Identifier: MIT
// Streams of a GPU behind the seam: which work waits for which, what a captured graph refuses, what steps of the host report.
// One text for all drivers; a driver's own part is an Api.
#pragma once
#include <stdint.h>

#include "kernels/backends/stream_errors.h"
#include "kernels/runtime/backend.h"

namespace tilekiln {

// Api, all static, with handles of the driver's own and its results, of which 0 is success:
//   Entered                                      the device is the thread's current one while it lives; status()
//   check(result, device, what)                  a status, in the driver's words
//   native(stream)                               the driver's handle of a stream of the seam
//   synchronize(handle), query(handle), capturing(handle, int*), run_on_host(handle, function, context)
//   synchronize_device()
//   copy(to, from, bytes, direction, handle), fill(to, byte, bytes, handle)
//   copies_host_memory_at_once                   ordinary memory of the host has been read when copy returns
//   allocate(device, stream, bytes, void**)      a status; stream null: in no stream's order
//   release(stream, memory)
//   allocate_pinned(void**, bytes), release_pinned(memory), is_pinned(memory)
// Numbers of results are those that CUDA and HIP share.
template <class Api>
struct Streams {
  using Entered = typename Api::Entered;

  // Null of the seam's streams: all has ended when a function returns.
  static tilekiln_status end(int device, NativeStream stream, const char* what) {
    return stream != nullptr ? TILEKILN_OK : Api::check(Api::synchronize(Api::native(stream)), device, what);
  }

  static tilekiln_status memory(Device device, NativeStream stream, size_t bytes, DeviceMemory* memory) {
    const Entered entered(device.id);
    TILEKILN_TRY(entered.status());
    if (bytes == 0) {
      void* const at = memory->base;
      *memory = {};
      return Api::check(Api::release(stream, at), device.id, "giving memory back");
    }
    void* at = nullptr;
    TILEKILN_TRY(Api::allocate(device.id, stream, bytes, &at));
    *memory = {at, at, bytes};
    return TILEKILN_OK;
  }

  static tilekiln_status fill(Device device, NativeStream stream, void* to, int byte, size_t bytes) {
    const Entered entered(device.id);
    TILEKILN_TRY(entered.status());
    TILEKILN_TRY(Api::check(Api::fill(to, byte, bytes, Api::native(stream)), device.id, "filling memory"));
    return end(device.id, stream, "filling memory");
  }

  static tilekiln_status captured(Device device, NativeStream stream, bool* yes) {
    const Entered entered(device.id);
    TILEKILN_TRY(entered.status());
    int capturing = 0;
    const auto result = Api::capturing(Api::native(stream), &capturing);
    constexpr int implicit = 906;  // another stream is being captured, which the default one would join
    *yes = capturing != 0 || result == implicit;
    return *yes ? TILEKILN_OK : Api::check(result, device.id, "asking a stream");
  }

  static tilekiln_status copy(Device device, NativeStream stream, void* to, const void* from, size_t bytes,
                              Direction direction) {
    const Entered entered(device.id);
    TILEKILN_TRY(entered.status());
    const bool staged = direction == Direction::staged, to_host = direction == Direction::to_host;
    // A graph would read the host's memory when it is replayed.
    if (direction != Direction::on_device)
      TILEKILN_TRY(refuse_capture(device, stream, staged ? host_steps : "a call that reads on the host"));
    // Memory that the host reads now may be the work of any stream, also of those that do not wait for the default one.
    if (stream == nullptr && to_host)
      TILEKILN_TRY(Api::check(Api::synchronize_device(), device.id, "waiting for what is to be read on the host"));
    TILEKILN_TRY(Api::check(Api::copy(to, from, bytes, direction, Api::native(stream)), device.id, "a copy"));
    if (staged) return TILEKILN_OK;
    const bool waits = to_host || (direction == Direction::to_device && !Api::copies_host_memory_at_once);
    return waits ? wait_for(device, stream, "a copy") : end(device.id, stream, "a copy");
  }

  static tilekiln_status host(Device device, NativeStream stream, tilekiln_status (*function)(void*), void* context) {
    if (stream == nullptr) return function(context);
    const Entered entered(device.id);
    TILEKILN_TRY(entered.status());
    TILEKILN_TRY(refuse_capture(device, stream, host_steps));
    const auto native = Api::native(stream);
    return errors().run_later(device.id, native, function, context, [&](void (*run)(void*), void* step) {
      return Api::check(Api::run_on_host(native, run, step), device.id, "a function of the host");
    });
  }

  static tilekiln_status wait(Device device, NativeStream stream) {
    const Entered entered(device.id);
    TILEKILN_TRY(entered.status());
    TILEKILN_TRY(wait_for(device, stream, "waiting for a stream"));
    return errors().first(device.id, Api::native(stream));
  }

  static tilekiln_status query(Device device, NativeStream stream, bool* idle) {
    const Entered entered(device.id);
    TILEKILN_TRY(entered.status());
    constexpr int not_ready = 600;
    const auto result = Api::query(Api::native(stream));
    *idle = result == 0;
    return result == not_ready ? TILEKILN_OK : Api::check(result, device.id, "asking a stream");
  }

  static tilekiln_staging_allocator staging(Device device) {
    return {sizeof(tilekiln_staging_allocator), allocate_pinned, release_pinned,
            reinterpret_cast<void*>(static_cast<intptr_t>(device.id))};
  }
  static bool is_pinned(Device device, const void* memory) {
    const Entered entered(device.id);
    return entered.status() == TILEKILN_OK && Api::is_pinned(memory);
  }

 private:
  static constexpr const char* host_steps = "steps over memory of the host that run once";

  static tilekiln_status refuse_capture(Device device, NativeStream stream, const char* what) {
    bool yes = false;
    TILEKILN_TRY(captured(device, stream, &yes));
    return yes ? fail_argument("stream", "was being captured into a graph, must not be by %s", what) : TILEKILN_OK;
  }

  static tilekiln_status wait_for(Device device, NativeStream stream, const char* what) {
    return Api::check(Api::synchronize(Api::native(stream)), device.id, what);
  }

  // Never destroyed: streams may still run while the process exits.
  static StreamErrors& errors() {
    static StreamErrors* const errors = new StreamErrors;
    return *errors;
  }

  // `context` is the device's number.
  static void* allocate_pinned(void* context, size_t bytes) {
    const Entered entered(static_cast<int>(reinterpret_cast<intptr_t>(context)));
    void* memory = nullptr;
    return entered.status() == TILEKILN_OK && Api::allocate_pinned(&memory, bytes) == 0 ? memory : nullptr;
  }
  static void release_pinned(void* context, void* memory, size_t) {
    const Entered entered(static_cast<int>(reinterpret_cast<intptr_t>(context)));
    static_cast<void>(Api::release_pinned(memory));  // fails only where the context is gone, and the memory with it
  }
};

}  // namespace tilekiln
