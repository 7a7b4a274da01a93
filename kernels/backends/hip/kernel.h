// SPDX-License-Identifier: MIT
// Kernels as a library holds them, and what a function of an operator's room makes of a call.
#pragma once
#include "kernels/backends/hip/runtime.h"

namespace tilekiln::hip {

// An entry of builds.yaml for one dtype, written by build_support/toolchains/hip.py; loaded when it is first launched.
struct Kernel {
  const char* name;   // "fmha_fwd_gfx942_d128-bf16"
  const void* image;  // a code object
  const void* build;  // what the code object says of itself: the Build of its room's problem.h
};

// One launch, as a function of an operator's room makes it of a problem.
struct KernelLaunch {
  const Kernel* kernel;
  const char* function;
  unsigned grid[3], threads;
  const void* problem;  // the kernel's one argument, by value
  size_t problem_bytes;
  unsigned shared_bytes = 0;  // of LDS beside the kernel's own
};

// The device and stream that a stage runs on, and the instance chosen for it.
struct Site {
  Device device;
  NativeStream stream;
  const Choice* choice;
};

// The engine of one pipeline on this backend. `launch` checks what only the device demands, fills the kernel's problem
// and launches it; `any` is one of the kernels that the library holds, null for none: a device that loads it runs the
// target. A kernel of fixed features has an Engine of its own: {null, the kernel, its pipeline's, the kernel}.
struct Engine {
  tilekiln_status (*launch)(const Site& site, const void* problem);
  const Kernel* (*any)();
  const Engine* of = nullptr;
  const Kernel* kernel = nullptr;  // null: `launch` finds one that takes the problem
};

// The engine of the chosen instance.
inline const Engine& engine_of(const Site& site) { return *static_cast<const Engine*>(site.choice->engine); }

// Enqueues it; loads the kernel first, when it is new.
[[nodiscard]] tilekiln_status launch(const Site& site, const KernelLaunch& launch);

}  // namespace tilekiln::hip
