// SPDX-License-Identifier: MIT
// The environment variables that the library obeys, read once, at the first call that needs one.
#pragma once
#include "kernels/runtime/status.h"

namespace tilekiln {

// The most threads one call may use: a bound on what a typing error can start.
constexpr int max_threads = 1024;

// Amount of logging: nothing; a line a call; beside it refusals in full; beside it the threads of each stage.
enum class LogLevel : int8_t { off, calls, refusals, stages };

struct Environment {
  const char* isa;                 // TILEKILN_ISA: the best ISA allowed; "" when unset
  const char* target;              // TILEKILN_TARGET: the best target of its backend allowed; "" when unset
  bool tuned;                      // TILEKILN_TUNED is not no: pinned choices are taken
  bool verbose_dispatch;           // TILEKILN_VERBOSE holds the word "dispatch"
  LogLevel log;                    // TILEKILN_LOG
  const char* log_file;            // TILEKILN_LOG_FILE; "" when unset: stderr
  const char* dump;                // TILEKILN_DUMP, a folder; "" when unset
  uint64_t dump_bytes;             // TILEKILN_DUMP_SIZE: what the files of this process may hold
  bool tells_choices, logs_calls;  // whether any of these asks for it
  int threads;  // TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use; 0: not understood
  const char* threads_text;  // what TILEKILN_NUM_THREADS was, for the error
};

const Environment& environment();

// The threads of a call that asked for `requested` (0: the environment decides).
[[nodiscard]] tilekiln_status thread_count(int requested, int* threads);

}  // namespace tilekiln
