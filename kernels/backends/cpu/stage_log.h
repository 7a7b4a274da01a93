// SPDX-License-Identifier: MIT
// Lines of the log for the threads of a stage: TILEKILN_LOG=stages.
#pragma once
#include "kernels/runtime/backend.h"

namespace tilekiln {

// Runs the units of a launch, and tells which threads ran how many of them, from when to when.
[[nodiscard]] tilekiln_status run_told(const Launch& launch);

}  // namespace tilekiln
