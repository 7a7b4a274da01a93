// SPDX-License-Identifier: MIT
// The device, its context, errors, streams and events.
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "cudasim.h"

namespace cudasim {

namespace {

bool failed = false;
char context_of_the_device;
thread_local void* current[64];
thread_local int depth = 0;

const std::map<int, std::pair<const char*, const char*>>& names() {
  static const std::map<int, std::pair<const char*, const char*>> all = {
      {success, {"CUDA_SUCCESS", "no error"}},
      {invalid_value, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
      {out_of_memory, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
      {no_device, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
      {invalid_device, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
      {invalid_image, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
      {no_binary_for_gpu, {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"}},
      {invalid_handle, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
      {not_found, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
      {launch_failed, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
      {cooperative_too_large, {"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"}},
  };
  return all;
}

struct Event {
  bool recorded = false;
  std::chrono::steady_clock::time_point at;
};
template <class T> std::set<void*>& all_of() {
  static std::set<void*> all;
  return all;
}
struct Stream {};
/// Null, the legacy stream and the thread's are the default one.
bool is_stream(void* stream) { return reinterpret_cast<uintptr_t>(stream) <= 2 || all_of<Stream>().count(stream); }

}  // namespace

std::mutex& gate() {
  static std::mutex one;
  return one;
}
int failed_before() { return failed ? launch_failed : success; }
int fail_for_good() { return failed = true, launch_failed; }
int processors() {
  const char* said = std::getenv("TILEKILN_CUDASIM_PROCESSORS");
  const int count = said ? std::atoi(said) : 3;
  return count > 0 ? count : 3;
}

}  // namespace cudasim

using namespace cudasim;

CUDA_API int cuInit(unsigned flags) { return flags ? invalid_value : success; }
CUDA_API int cuDriverGetVersion(int* version) { return version ? (*version = 13000, success) : invalid_value; }
/// Word by which a program knows that what it sees of time and of silicon is neither.
CUDA_API const char* tilekiln_cudasim_architecture() {
  const char* wanted = std::getenv("TILEKILN_CUDASIM_ARCH");
  return wanted && *wanted ? wanted : "sm_90";
}
CUDA_API int cuGetErrorName(int error, const char** text) {
  const auto found = names().find(error);
  if (found == names().end()) return *text = nullptr, invalid_value;
  return *text = found->second.first, success;
}
CUDA_API int cuGetErrorString(int error, const char** text) {
  const auto found = names().find(error);
  if (found == names().end()) return *text = nullptr, invalid_value;
  return *text = found->second.second, success;
}
CUDA_API int cuDeviceGetCount(int* count) { return count ? (*count = 1, success) : invalid_value; }
CUDA_API int cuDeviceGet(int* device, int ordinal) {
  if (!device) return invalid_value;
  return ordinal ? invalid_device : (*device = 0, success);
}
CUDA_API int cuDeviceGetName(char* name, int bytes, int device) {
  const char text[] = "emulated by tilekiln cudasim";
  if (!name || bytes < int(sizeof text) || device) return invalid_value;
  for (size_t k = 0; k < sizeof text; k++) name[k] = text[k];
  return success;
}
CUDA_API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  enum { multiprocessors = 16, major = 75, minor = 76, shared_bytes = 97, cooperative = 95 };
  if (!value || device) return invalid_value;
  const char* digits = tilekiln_cudasim_architecture() + 3;
  switch (attribute) {
    case multiprocessors: return *value = processors(), success;
    case major: return *value = digits[0] - '0', success;
    case minor: return *value = digits[1] - '0', success;
    case shared_bytes: return *value = digits[0] == '9' ? 232448 : 166912, success;
    case cooperative: return *value = 1, success;
    default: return invalid_value;
  }
}
CUDA_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (!context || device) return invalid_value;
  return *context = &context_of_the_device, success;
}
CUDA_API int cuDevicePrimaryCtxRelease_v2(int device) { return device ? invalid_device : success; }
CUDA_API int cuCtxGetCurrent(void** context) {
  if (!context) return invalid_value;
  return *context = depth ? current[depth - 1] : nullptr, success;
}
CUDA_API int cuCtxPushCurrent_v2(void* context) {
  if (context != &context_of_the_device || depth == 64) return invalid_value;
  return current[depth++] = context, success;
}
CUDA_API int cuCtxPopCurrent_v2(void** context) {
  if (!depth) return invalid_value;
  depth--;
  if (context) *context = current[depth];
  return success;
}
CUDA_API int cuCtxSynchronize() {
  const std::lock_guard lock(gate());
  return failed_before();
}

CUDA_API int cuStreamCreate(void** stream, unsigned) {
  const std::lock_guard lock(gate());
  if (!stream) return invalid_value;
  *stream = new Stream;
  all_of<Stream>().insert(*stream);
  return success;
}
CUDA_API int cuStreamDestroy_v2(void* stream) {
  const std::lock_guard lock(gate());
  if (!all_of<Stream>().erase(stream)) return invalid_handle;
  delete static_cast<Stream*>(stream);
  return success;
}
CUDA_API int cuStreamSynchronize(void* stream) {
  const std::lock_guard lock(gate());
  return is_stream(stream) ? failed_before() : invalid_handle;
}
CUDA_API int cuStreamQuery(void* stream) { return cuStreamSynchronize(stream); }
/// There are no graphs here.
CUDA_API int cuStreamIsCapturing(void* stream, int* capturing) {
  const std::lock_guard lock(gate());
  if (!capturing || !is_stream(stream)) return invalid_value;
  *capturing = 0;
  return success;
}
CUDA_API int cuLaunchHostFunc(void* stream, void (*function)(void*), void* context) {
  {
    const std::lock_guard lock(gate());
    if (!function || !is_stream(stream)) return invalid_value;
    if (failed_before()) return launch_failed;
  }
  function(context);
  return success;
}

CUDA_API int cuEventCreate(void** event, unsigned) {
  const std::lock_guard lock(gate());
  if (!event) return invalid_value;
  *event = new Event;
  all_of<Event>().insert(*event);
  return success;
}
CUDA_API int cuEventDestroy_v2(void* event) {
  const std::lock_guard lock(gate());
  if (!all_of<Event>().erase(event)) return invalid_handle;
  delete static_cast<Event*>(event);
  return success;
}
CUDA_API int cuEventRecord(void* event, void* stream) {
  const std::lock_guard lock(gate());
  if (!all_of<Event>().count(event) || !is_stream(stream)) return invalid_handle;
  static_cast<Event*>(event)->recorded = true;
  static_cast<Event*>(event)->at = std::chrono::steady_clock::now();  // everything before it is done
  return failed_before();
}
CUDA_API int cuEventSynchronize(void* event) {
  const std::lock_guard lock(gate());
  return all_of<Event>().count(event) ? failed_before() : invalid_handle;
}
CUDA_API int cuEventQuery(void* event) { return cuEventSynchronize(event); }
CUDA_API int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  const std::lock_guard lock(gate());
  return is_stream(stream) && all_of<Event>().count(event) ? failed_before() : invalid_handle;
}
/// Milliseconds of this machine between two recorded events: of the executor, never of a GPU.
CUDA_API int cuEventElapsedTime(float* milliseconds, void* start, void* stop) {
  const std::lock_guard lock(gate());
  if (!milliseconds) return invalid_value;
  if (!all_of<Event>().count(start) || !all_of<Event>().count(stop)) return invalid_handle;
  const auto &first = *static_cast<Event*>(start), &second = *static_cast<Event*>(stop);
  if (!first.recorded || !second.recorded) return invalid_handle;
  *milliseconds = std::chrono::duration<float, std::milli>(second.at - first.at).count();
  return failed_before();
}
