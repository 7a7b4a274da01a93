// What host functions of a device's streams had to say, until somebody waits for the stream.
#pragma once
#include <stdio.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "kernels/runtime/backend.h"

namespace tilekiln {

// Of one backend. Streams are the runtime's handles. One that is never destroyed may be used while the process exits.
class StreamErrors {
 public:
  // The text is that of the calling thread's last error.
  void keep(int device, void* stream, tilekiln_status status) {
    const std::lock_guard lock(mutex_);
    Error error = {device, stream, status, ""};
    snprintf(error.text, sizeof(error.text), "%s", error_text());
    all_.push_back(error);
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
