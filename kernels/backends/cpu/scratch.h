// SPDX-License-Identifier: MIT
// Working memory of one thread, kept from call to call.
#pragma once
#include <stddef.h>

namespace tilekiln {

// Memory of at least `bytes`, aligned to 64, this thread's own until it ends; null when there is no memory. One user at a time: a task
// that runs to its end before the thread takes up another.
void* thread_scratch(size_t bytes) noexcept;

}  // namespace tilekiln
