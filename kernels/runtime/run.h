// SPDX-License-Identifier: MIT
// The place of a call's work: its device and stream, and the threads of the host.
#pragma once
#include "kernels/runtime/query.h"
#include "tilekiln/tilekiln.h"

namespace tilekiln {

struct Backend;
extern const Backend cpu_backend;

struct Run {
  int threads = 1;
  bool lent = false;  // run on `executor`, not on the pool
  tilekiln_executor executor = {};
  Device device;  // of its arrays
  const Backend* backend = &cpu_backend;
  void* native = nullptr;  // the stream of the backend that the steps go to, one by one; null: they run at once
};

}  // namespace tilekiln
