// SPDX-License-Identifier: MIT
// Blocks of memory that calls use for a moment, kept for the next call. Fresh pages are cleared by the system: 1 to 3 % of
// the time of a backward of 1024 rows.
//
// A library keeps at most 8 blocks and 64 MiB together, what is more goes back to the system at once; all of it when the
// library is unloaded. Any thread may come at any time, and a forked child has what its parent had.
#pragma once
#include <stddef.h>

namespace tilekiln {

struct KeptBlock {
  void* data = nullptr;  // aligned to a page
  size_t bytes = 0;
};

// Takes at least `bytes`, whatever they hold; no data when there is no memory.
KeptBlock take_block(size_t bytes) noexcept;
void give_back(KeptBlock block) noexcept;

}  // namespace tilekiln
