// SPDX-License-Identifier: MIT
// Count of this process's forks, which threads do not outlive.
#pragma once
#include <stdint.h>

namespace tilekiln {

// Forks since the library was loaded, counted along the process's line of ancestors. What was made under another count has threads that
// do not exist here and locks in any state.
uint32_t fork_count() noexcept;
// Makes fork_count work; called before the first thread is started or stream made.
void watch_forks() noexcept;

}  // namespace tilekiln
