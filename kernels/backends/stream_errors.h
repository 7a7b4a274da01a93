// SPDX-License-Identifier: MIT
// Functions of the host on a device's streams, and what they had to say, until somebody waits for the stream.
#pragma once
#include <stdio.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "kernels/runtime/backend.h"

namespace tilekiln {

// Errors of the streams of one backend. Streams are the runtime's handles. One that is never destroyed may be used while the process exits.
class StreamErrors {
 public:
  // The text is that of the calling thread's last error.
  void keep(int device, void* stream, tilekiln_status status) {
    const std::lock_guard lock(mutex_);
    Error error = {device, stream, status, ""};
    snprintf(error.text, sizeof(error.text), "%s", error_text());
    all_.push_back(error);
  }

  // A function of the host in its turn on a stream, by `enqueue(run, step)`, the backend's: should it fail, who waits for the stream learns
  // it. It runs in a thread of the driver, which may hold its locks: it may not call it.
  template <class Enqueue>
  tilekiln_status run_later(int device, void* stream, tilekiln_status (*function)(void*), void* context,
                            Enqueue&& enqueue) {
    auto* const step = new Step{this, function, context, device, stream};
    const tilekiln_status status = enqueue(run, step);
    if (status != TILEKILN_OK) delete step;
    return status;
  }

  // The first that was kept of a stream; none are kept then.
  tilekiln_status first(int device, void* stream) {
    const std::lock_guard lock(mutex_);
    const auto own = [&](const Error& one) { return one.device == device && one.stream == stream; };
    const auto found = std::find_if(all_.begin(), all_.end(), own);
    if (found == all_.end()) return TILEKILN_OK;
    const tilekiln_status status = fail(found->status, "%s", found->text);
    all_.erase(std::remove_if(all_.begin(), all_.end(), own), all_.end());
    return status;
  }

 private:
  struct Step {
    StreamErrors* errors;
    tilekiln_status (*function)(void*);
    void* context;
    int device;
    void* stream;
  };
  static void run(void* of) {
    Step* const step = static_cast<Step*>(of);
    const tilekiln_status status = step->function(step->context);
    if (status != TILEKILN_OK) step->errors->keep(step->device, step->stream, status);
    delete step;
  }

  struct Error {
    int device;
    void* stream;
    tilekiln_status status;
    char text[512];
  };
  std::mutex mutex_;
  std::vector<Error> all_;
};

}  // namespace tilekiln
