// SPDX-License-Identifier: MIT
// Constants of a build of a kernel that chooses experts, which the host must know: its image holds one.
#pragma once

namespace tilekiln::cuda::moe {

struct Build {
  int threads;
  int dtype;  // by value of the axis
};

}  // namespace tilekiln::cuda::moe
