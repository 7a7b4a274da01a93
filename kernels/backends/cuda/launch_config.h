// SPDX-License-Identifier: MIT
// A launch as cuLaunchKernelEx takes it: CUlaunchConfig and CUlaunchAttribute of cuda.h.
#pragma once

namespace tilekiln::cuda {

struct LaunchAttribute {
  static constexpr unsigned cluster_dimension = 4;
  static constexpr unsigned programmatic = 6;  // it may begin under the launch before it in its stream
  unsigned id, padding;
  unsigned value[16];
};
struct LaunchConfig {
  unsigned grid[3], threads[3], shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56, "cuda.h");

}  // namespace tilekiln::cuda
