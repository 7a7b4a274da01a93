// SPDX-License-Identifier: MIT
// A CUDA driver over the executor: the names, numbers and order of arguments of libcuda, so that what calls that runs unchanged
// where there is no GPU. Emulated (functional).
//
// Work is done when it is asked for, so streams are in order by nature. A kernel that breaks a rule of the executor gives
// CUDA_ERROR_LAUNCH_FAILED from then on, as a faulty kernel does, and the executor's sentence on stderr.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>

#define CUDA_API extern "C" __attribute__((visibility("default")))

namespace cudasim {

enum Error : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  no_device = 100,
  invalid_device = 101,
  invalid_image = 200,
  no_binary_for_gpu = 209,
  invalid_handle = 400,
  not_found = 500,
  launch_failed = 719,
  cooperative_too_large = 720,
};

/// Mutex of everything here: one call at a time.
std::mutex& gate();
/// The error that every function of the driver returns once a kernel has failed; success before.
int failed_before();
int fail_for_good();
/// TILEKILN_CUDASIM_PROCESSORS: of the device, 3 by default, so that persistent kernels take several tiles.
int processors();

using Pointer = unsigned long long;

}  // namespace cudasim
