// SPDX-License-Identifier: MIT
// The device, errors, streams and events.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "hipsim.h"

namespace hipsim {

namespace {

int last = success;
bool failed = false;

struct Event {
  bool recorded = false;
  std::chrono::steady_clock::time_point at;
};
struct Stream {};
std::set<void*>& streams() {
  static std::set<void*> all;
  return all;
}
std::set<void*>& events() {
  static std::set<void*> all;
  return all;
}

bool is_stream(void* stream) { return !stream || streams().count(stream); }

const std::map<int, std::pair<const char*, const char*>>& names() {
  static const std::map<int, std::pair<const char*, const char*>> all = {
      {success, {"hipSuccess", "no error"}},
      {invalid_value, {"hipErrorInvalidValue", "invalid argument"}},
      {out_of_memory, {"hipErrorOutOfMemory", "out of memory"}},
      {invalid_device, {"hipErrorInvalidDevice", "invalid device ordinal"}},
      {invalid_image, {"hipErrorInvalidImage", "device kernel image is invalid"}},
      {no_binary_for_gpu, {"hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"}},
      {invalid_handle, {"hipErrorInvalidHandle", "invalid resource handle"}},
      {not_found, {"hipErrorNotFound", "named symbol not found"}},
      {not_ready, {"hipErrorNotReady", "device not ready"}},
      {launch_failure, {"hipErrorLaunchFailure", "unspecified launch failure"}},
  };
  return all;
}

}  // namespace

std::mutex& gate() {
  static std::mutex one;
  return one;
}

int noted(int error) {
  if (error) last = error;
  if (error == launch_failure) failed = true;
  return error;
}

int failed_before() { return failed ? launch_failure : success; }

}  // namespace hipsim

using namespace hipsim;

HIP_API int hipInit(unsigned flags) { return noted(flags ? invalid_value : success); }
HIP_API int hipGetDeviceCount(int* count) {
  if (!count) return noted(invalid_value);
  *count = 1;
  return success;
}
/// Word by which a program knows that what it sees of time and of silicon is neither.
HIP_API const char* tilekiln_hipsim_architecture() {
  const char* wanted = std::getenv("TILEKILN_HIPSIM_ARCH");
  return wanted && *wanted ? wanted : "gfx942";
}
HIP_API int hipDeviceGetName(char* name, int bytes, int device) {
  if (!name || bytes < 1 || device) return noted(invalid_value);
  std::snprintf(name, size_t(bytes), "%s, emulated by tilekiln hipsim", tilekiln_hipsim_architecture());
  return success;
}
/// The one attribute that libraries ask for: compute units of a card (MI250, MI300X, MI355X, RX 7900 XTX, RX 9070 XT).
HIP_API int hipDeviceGetAttribute(int* value, int attribute, int device) {
  constexpr int multiprocessors = 63;
  if (!value || device || attribute != multiprocessors) return noted(invalid_value);
  static const std::map<std::string, int> units = {
      {"gfx90a", 104}, {"gfx942", 304}, {"gfx950", 256}, {"gfx1100", 96}, {"gfx1201", 64}};
  const auto found = units.find(tilekiln_hipsim_architecture());
  *value = found == units.end() ? 1 : found->second;
  return success;
}
HIP_API int hipRuntimeGetVersion(int* version) {
  if (!version) return noted(invalid_value);
  *version = 0;
  return success;
}
HIP_API int hipSetDevice(int device) { return noted(device ? invalid_device : success); }
HIP_API int hipGetDevice(int* device) {
  if (!device) return noted(invalid_value);
  *device = 0;
  return success;
}
HIP_API int hipDeviceSynchronize() {
  const std::lock_guard lock(gate());
  return failed_before();
}
HIP_API int hipGetLastError() {
  const std::lock_guard lock(gate());
  const int error = last;
  last = failed_before();
  return error;
}
HIP_API int hipPeekAtLastError() {
  const std::lock_guard lock(gate());
  return last;
}
HIP_API const char* hipGetErrorName(int error) {
  const auto found = names().find(error);
  return found == names().end() ? "hipErrorUnknown" : found->second.first;
}
HIP_API const char* hipGetErrorString(int error) {
  const auto found = names().find(error);
  return found == names().end() ? "unknown error" : found->second.second;
}

HIP_API int hipStreamCreate(void** stream) {
  const std::lock_guard lock(gate());
  if (!stream) return noted(invalid_value);
  *stream = new Stream;
  streams().insert(*stream);
  return success;
}
HIP_API int hipStreamCreateWithFlags(void** stream, unsigned) { return hipStreamCreate(stream); }
HIP_API int hipStreamDestroy(void* stream) {
  const std::lock_guard lock(gate());
  if (!streams().erase(stream)) return noted(invalid_handle);
  delete static_cast<Stream*>(stream);
  return success;
}
HIP_API int hipStreamSynchronize(void* stream) {
  const std::lock_guard lock(gate());
  return is_stream(stream) ? failed_before() : noted(invalid_handle);
}
HIP_API int hipStreamQuery(void* stream) { return hipStreamSynchronize(stream); }
/// There are no graphs here.
HIP_API int hipStreamIsCapturing(void* stream, int* capturing) {
  const std::lock_guard lock(gate());
  if (!capturing || !is_stream(stream)) return noted(invalid_value);
  *capturing = 0;
  return success;
}
HIP_API int hipLaunchHostFunc(void* stream, void (*function)(void*), void* context) {
  {
    const std::lock_guard lock(gate());
    if (!function || !is_stream(stream)) return noted(invalid_value);
    if (failed_before()) return launch_failure;
  }
  function(context);  // it may ask for more
  return success;
}
HIP_API int hipStreamWaitEvent(void* stream, void* event, unsigned) {
  const std::lock_guard lock(gate());
  return is_stream(stream) && events().count(event) ? failed_before() : noted(invalid_handle);
}

HIP_API int hipEventCreate(void** event) {
  const std::lock_guard lock(gate());
  if (!event) return noted(invalid_value);
  *event = new Event;
  events().insert(*event);
  return success;
}
HIP_API int hipEventCreateWithFlags(void** event, unsigned) { return hipEventCreate(event); }
HIP_API int hipEventDestroy(void* event) {
  const std::lock_guard lock(gate());
  if (!events().erase(event)) return noted(invalid_handle);
  delete static_cast<Event*>(event);
  return success;
}
HIP_API int hipEventRecord(void* event, void* stream) {
  const std::lock_guard lock(gate());
  if (!events().count(event) || !is_stream(stream)) return noted(invalid_handle);
  auto* one = static_cast<Event*>(event);
  one->recorded = true;
  one->at = std::chrono::steady_clock::now();  // everything before it is done
  return failed_before();
}
HIP_API int hipEventQuery(void* event) {
  const std::lock_guard lock(gate());
  return events().count(event) ? failed_before() : noted(invalid_handle);
}
HIP_API int hipEventSynchronize(void* event) { return hipEventQuery(event); }
/// Milliseconds of this machine between two recorded events: of the executor, never of a GPU.
HIP_API int hipEventElapsedTime(float* milliseconds, void* start, void* stop) {
  const std::lock_guard lock(gate());
  if (!milliseconds) return noted(invalid_value);
  if (!events().count(start) || !events().count(stop)) return noted(invalid_handle);
  const auto &first = *static_cast<Event*>(start), &second = *static_cast<Event*>(stop);
  if (!first.recorded || !second.recorded) return noted(invalid_handle);
  *milliseconds = std::chrono::duration<float, std::milli>(second.at - first.at).count();
  return failed_before();
}
