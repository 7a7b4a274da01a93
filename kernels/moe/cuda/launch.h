// SPDX-License-Identifier: MIT
// Launch of a kernel that chooses experts: rows of logits, one a warp. Host text of NVIDIA's and AMD's engines.
#pragma once

#include <algorithm>

#include "kernels/backends/held.h"
#include "kernels/moe/cuda/build.h"

namespace tilekiln::cuda::moe {

// The build is that of the dtype; the checked problem is the argument of the kernel.
template <class Problem>
[[nodiscard]] tilekiln_status launch_choices(const Site& site, const Problem& a, const char* entry) {
  if (a.rows == 0) return TILEKILN_OK;
  const Kernel* const kernel =
      find_held([&](const Kernel& one) { return static_cast<const Build*>(one.build)->dtype == a.dtype; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has %s for a GPU without its kernel", entry);
  const int threads = static_cast<const Build*>(kernel->build)->threads;
  const long long rows = threads / 32, blocks = (a.rows + rows - 1) / rows;
  const auto grid = static_cast<unsigned>(std::min<long long>(blocks, INT32_MAX));
  return launch(site, {kernel, entry, {grid, 1, 1}, static_cast<unsigned>(threads), 0, &a, false});
}

}  // namespace tilekiln::cuda::moe
