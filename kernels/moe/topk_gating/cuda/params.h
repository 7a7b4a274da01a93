// SPDX-License-Identifier: MIT
// Parameters of GPUs' topk_gating are the checked problem; here is what one build of it is made for.
#pragma once

#include "kernels/moe/cuda/build.h"
#include "kernels/moe/topk_gating/engine.h"

namespace tilekiln::cuda::moe {

constexpr int kGroupsOf = 4, kMostGroups = 32 * kGroupsOf;  // groups that a lane ranks, and all of a warp

}  // namespace tilekiln::cuda::moe
