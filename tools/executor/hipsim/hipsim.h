// SPDX-License-Identifier: MIT
// A HIP runtime over the executor: the names, numbers and order of arguments of libamdhip64, so that what calls that runs
// unchanged where there is no GPU. Emulated (functional), never run on AMD silicon.
//
// Work is done when it is asked for, so streams are in order by nature. A kernel that breaks a rule of the executor gives
// hipErrorLaunchFailure from then on, as a faulty kernel does, and the executor's sentence on stderr.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "allocations.h"

#define HIP_API extern "C" __attribute__((visibility("default")))

namespace hipsim {

enum Error : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  invalid_device = 101,
  invalid_image = 200,
  no_binary_for_gpu = 209,
  invalid_handle = 400,
  not_found = 500,
  not_ready = 600,
  launch_failure = 719,
};

/// Mutex of everything here: one call at a time.
std::mutex& gate();
/// Keeps an error for hipGetLastError and returns it; launch_failure stays for good.
int noted(int error);
/// launch_failure once a kernel has failed, else success.
int failed_before();

using executor::allocations;  // device memory

}  // namespace hipsim

HIP_API const char* tilekiln_hipsim_architecture();
