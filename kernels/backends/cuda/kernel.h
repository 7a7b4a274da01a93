// SPDX-License-Identifier: MIT
// Kernels as a library holds them, and what a function of an operator's room makes of a call.
#pragma once
#include "kernels/backends/cuda/driver.h"
#include "kernels/backends/cuda/tensor_map.h"

namespace tilekiln::cuda {

// An entry of builds.yaml for one dtype, written by build_support/toolchains/nvcc.py; loaded when it is first launched.
struct Kernel {
  const char* name;   // "fmha_fwd_d128-bf16"
  const void* image;  // a cubin; with `of`: its changes to that kernel's (changed.h)
  const void* build;  // what the cubin says of itself: the Build of its room's params.h
  const Kernel* of;
};

// One launch, as a function of an operator's room makes it of a problem.
struct KernelLaunch {
  const Kernel* kernel;
  const char* function;
  unsigned grid[3], threads, shared_bytes;
  const void* row;  // the kernel's one argument
  bool together;    // its blocks wait for each other: all are resident at once, or it does not begin
  bool early;  // it may begin under the launch before it in the stream, and waits for its end (wait_for_launch_before)
  unsigned cluster = 1;            // blocks of a cluster, neighbours along x, where the function does not say so itself
  unsigned most_shared_bytes = 0;  // that any launch of the function has; 0: all have as many
};

// The device and stream that a stage runs on, and the instance chosen for it.
struct Site {
  Device device;
  NativeStream stream;
  const Choice* choice;
};

// The engine of one pipeline on this backend. `launch` checks what only the device demands, fills the row, launches it.
// A kernel of fixed features has an Engine of its own: {null, its pipeline's, the kernel}.
struct Engine {
  tilekiln_status (*launch)(const Site& site, const void* problem);
  const Engine* of = nullptr;
  const Kernel* kernel = nullptr;  // null: `launch` finds one that takes the problem
};

// The engine of the chosen instance.
inline const Engine& engine_of(const Site& site) { return *static_cast<const Engine*>(site.choice->engine); }

// Enqueues it; loads the kernel first, when it is new.
[[nodiscard]] tilekiln_status launch(const Site& site, const KernelLaunch& launch);

// Rows swizzled over 128 bytes: (hdim, row, sequence, batch, head), boxes of 128 bytes x `rows` x `further`.
struct RowArray {
  const char* name;  // of the argument, for errors
  const void* data;
  int dtype;                         // TILEKILN_FP16, TILEKILN_BF16 or TILEKILN_FP8
  uint64_t lengths[5], strides[4];   // strides in bytes
  bool ahead = false;                // L2 reads 256 bytes where 128 are asked for
  uint32_t further[3] = {1, 1, 1};   // lengths of a box along dimensions 2 to 4
  uint32_t every[4] = {1, 1, 1, 1};  // of dimensions 1 to 4: of a box's elements one in so many, at most 8, is copied
};
[[nodiscard]] tilekiln_status encode(const RowArray& array, uint32_t rows, int device, TensorMap* map);

// A word on the device that is zero, for a kernel that leaves zero behind. No two launches that may run at once share
// one: words go round (65,536 launches later one comes again), and a launch that is captured into a graph keeps its
// own.
[[nodiscard]] tilekiln_status zero_word(int device, NativeStream stream, unsigned** word);

// Memory of one launch, which its blocks share: taken before it, given back behind it in stream order.
class LaunchMemory {
 public:
  LaunchMemory() = default;
  LaunchMemory(const LaunchMemory&) = delete;
  ~LaunchMemory();
  // `bytes` of anything, a multiple of 16, and `words` zeros, which the launch leaves zero.
  [[nodiscard]] tilekiln_status take(const Site& site, size_t bytes, uint32_t words);
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] unsigned* zeros() const { return zeros_; }

 private:
  Site site_ = {};
  void* data_ = nullptr;
  unsigned* zeros_ = nullptr;
};

// Memory in stream order. It is of a pool of the device's own, which keeps what comes back: the driver's default pool
// unmaps it whenever a stream is waited for.
[[nodiscard]] tilekiln_status allocate(int device, NativeStream stream, size_t bytes, Pointer* memory);

}  // namespace tilekiln::cuda
