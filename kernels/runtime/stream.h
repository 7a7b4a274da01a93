// SPDX-License-Identifier: MIT
// Streams: in-order queues with a worker each, and streams of other backends that were wrapped.
#pragma once
#include "kernels/runtime/run.h"
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

// Takes the task over. The stream must have been checked by check_stream, and be no wrapped one.
void enqueue(tilekiln_stream& stream, StreamTask* task);
// Checks that this is a stream that was created and not destroyed, as far as its memory tells.
[[nodiscard]] tilekiln_status check_stream(const tilekiln_stream* stream);
// Checks that the steps of `run`, whose device is known, may go to a stream that was checked; where they go one by one, run->native
// says it.
[[nodiscard]] tilekiln_status check_stream_of(const tilekiln_stream& stream, Run* run);
// The stream as the backend of a call takes it: the wrapped one, or the host's queue itself.
void* native_of(tilekiln_stream& stream);

}  // namespace tilekiln
