// SPDX-License-Identifier: MIT
// The kernels that a library holds, for the host functions of the rooms. Compiled with -DTILEKILN_KERNELS=<K(name) for
// every kernel there is>; those that no row of the library needs are null.
#pragma once

#include "kernels/backends/cuda/kernel.h"

#define K(name) extern "C" __attribute__((weak, visibility("hidden"))) const tilekiln::cuda::Kernel name;
TILEKILN_KERNELS
#undef K

namespace tilekiln::cuda {

constexpr bool kBlocksMeet = true, kTeamsMeet = true;

namespace {

#define K(name) &name,
const Kernel* const held[] = {TILEKILN_KERNELS};
#undef K

// The first kernel that `fits`; null: the library has none.
template <class Fits>
const Kernel* find_held(Fits&& fits) {
  for (const Kernel* kernel : held) {
    if (kernel != nullptr && fits(*kernel)) return kernel;
  }
  return nullptr;
}

}  // namespace
}  // namespace tilekiln::cuda
