// SPDX-License-Identifier: MIT
// The processors of the host behind the seam: units in threads, memory of the C library, streams with a worker each.
#include <stdlib.h>
#include <string.h>

#include "kernels/backends/cpu/bf16_arithmetic.h"
#include "kernels/backends/cpu/kept.h"
#include "kernels/backends/cpu/parallel.h"
#include "kernels/backends/cpu/stage_log.h"
#include "kernels/runtime/backend.h"
#include "kernels/runtime/environment.h"
#include "kernels/runtime/probe.h"
#include "kernels/runtime/stream.h"

namespace tilekiln {
namespace {

bool has(Device, const Target& target) { return target.supported(); }

// Steps of the host run at once: what is to wait for a stream waits there as a whole call.
tilekiln_status check_now(NativeStream stream) {
  if (stream == nullptr) return TILEKILN_OK;
  return fail(TILEKILN_INTERNAL, "a step of the host was given a stream; a call waits in its stream as a whole");
}

tilekiln_status run_units(const Launch& launch) {
  if (__builtin_expect(environment().log == LogLevel::stages, 0)) return run_told(launch);
  return run_ranges(
      *launch.run, launch.units, launch.work, launch.scratch_bytes, launch.stretches,
      [&](int64_t first, int64_t last, void* scratch) { launch.unit(launch.context, first, last, scratch); });
}

tilekiln_status launch(Device, NativeStream stream, const Launch& launch) {
  TILEKILN_TRY(check_now(stream));
  TILEKILN_PROBE(stage_begin, launch.choice->instance, launch.units);
  const tilekiln_status status = run_units(launch);
  TILEKILN_PROBE(stage_end, launch.choice->instance, launch.units);
  return status;
}

tilekiln_status memory(Device, NativeStream stream, size_t bytes, DeviceMemory* memory) {
  TILEKILN_TRY(check_now(stream));
  constexpr size_t large = 4 << 20;  // the C library keeps smaller ones itself
  if (bytes == 0) {
    free(memory->base);
    if (memory->base == nullptr) give_back({memory->data, memory->bytes});
    *memory = {};
    return TILEKILN_OK;
  }
  if (bytes >= large) {
    const KeptBlock block = take_block(bytes);
    *memory = {block.data, nullptr, block.bytes};
  } else {
    void* const made = aligned_alloc(64, (bytes + 63) / 64 * 64);
    *memory = {made, made, bytes};
  }
  if (memory->data != nullptr) return TILEKILN_OK;
  return fail(TILEKILN_OUT_OF_MEMORY, "no memory for %zu bytes", bytes);
}

tilekiln_status fill(Device, NativeStream stream, void* to, int byte, size_t bytes) {
  TILEKILN_TRY(check_now(stream));
  memset(to, byte, bytes);
  return TILEKILN_OK;
}

tilekiln_status copy(Device, NativeStream stream, void* to, const void* from, size_t bytes, Direction) {
  TILEKILN_TRY(check_now(stream));
  memcpy(to, from, bytes);
  return TILEKILN_OK;
}

class FunctionTask : public StreamTask {
 public:
  FunctionTask(tilekiln_status (*function)(void*), void* context) : function_(function), context_(context) {}
  tilekiln_status run() override { return function_(context_); }

 private:
  tilekiln_status (*function_)(void*);
  void* context_;
};

tilekiln_status host(Device, NativeStream stream, tilekiln_status (*function)(void*), void* context) {
  if (stream == nullptr) return function(context);
  enqueue(*static_cast<tilekiln_stream*>(stream), new FunctionTask(function, context));
  return TILEKILN_OK;
}

tilekiln_status wait(Device, NativeStream stream) {
  return stream == nullptr ? TILEKILN_OK : tilekiln_stream_synchronize(static_cast<tilekiln_stream*>(stream));
}

tilekiln_status query(Device, NativeStream stream, bool* idle) {
  int32_t answer = 1;
  if (stream != nullptr) TILEKILN_TRY(tilekiln_stream_query(static_cast<tilekiln_stream*>(stream), &answer));
  *idle = answer != 0;
  return TILEKILN_OK;
}

// Tells which arithmetic bf16 has, for the one target whose engines hold both ways.
const char* says_of_bf16(const Target& target) {
  return strcmp(target.isa, "avx512bf16") == 0 && target.supported() ? bf16_arithmetic() : "";
}

}  // namespace

const Backend cpu_backend = {"cpu",   TILEKILN_CPU, true,    true,    true,    nullptr,     has,
                             launch,  memory,       fill,    copy,    host,    wait,        query,
                             nullptr, nullptr,      nullptr, nullptr, nullptr, says_of_bf16};

}  // namespace tilekiln
