// SPDX-License-Identifier: MIT
// Host memory through which a stream copies, and the thread that gives it back.
#pragma once
#include <memory>

#include "kernels/runtime/status.h"

namespace tilekiln {

// Memory of an allocator; the last owner hands it to the releaser. An error when the allocator has none or gives it
// badly aligned.
[[nodiscard]] tilekiln_status allocate_staging(const tilekiln_staging_allocator* allocator, size_t bytes,
                                               std::shared_ptr<void>* memory);

}  // namespace tilekiln
