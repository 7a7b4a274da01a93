// SPDX-License-Identifier: MIT
// The call log: each call of an operator as a line, for who asks by TILEKILN_LOG, and its inputs as a file, by TILEKILN_DUMP.
#pragma once
#include "tilekiln/tilekiln.h"

namespace tilekiln {

// A call of an operator, with its name and the function that runs it.
struct LoggedCall {
  const char* name;
  const void* args;  // the operator's struct, or null; not checked yet
  tilekiln_status (*run)(const void* entry, const void* args);
  const void* entry;
};
// Runs the call: its inputs are written before, and its line after. The error's sentence stays that of the call.
[[nodiscard]] tilekiln_status run_logged(const LoggedCall& call);

}  // namespace tilekiln
