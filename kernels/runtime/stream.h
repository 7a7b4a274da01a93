// In-order queues with a worker each.
#pragma once
#include "kernels/runtime/status.h"

namespace tilekiln {

// One piece of work in a stream. run() is called once by the stream's worker; a status other than OK with its sentence in
// error_text() is kept for the next synchronise. Deleted after it ran.
class StreamTask {
 public:
  virtual ~StreamTask() = default;
  virtual tilekiln_status run() = 0;
  StreamTask* next = nullptr;
};

// Takes the task over. The stream must have been checked by check_stream.
void enqueue(tilekiln_stream& stream, StreamTask* task);
// Whether this is a stream that was created and not destroyed, as far as its memory tells.
[[nodiscard]] tilekiln_status check_stream(const tilekiln_stream* stream);

}  // namespace tilekiln
