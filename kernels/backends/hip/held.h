// SPDX-License-Identifier: MIT
// The kernels that a library holds, for the host functions of the rooms. Compiled with -DTILEKILN_KERNELS=<K(name) for
// every kernel there is>; those that no row of the library needs are null.
#pragma once
#include <string.h>

#include "kernels/backends/hip/kernel.h"

#define K(name) extern "C" __attribute__((weak, visibility("hidden"))) const tilekiln::hip::Kernel name;
TILEKILN_KERNELS
#undef K

namespace tilekiln::hip {
namespace {

// The first kernel whose name begins so and that `fits`; null: the library has none.
template <class Fits>
const Kernel* find_kernel(const char* name, Fits&& fits) {
#define K(name) &name,
  static const Kernel* const kernels[] = {TILEKILN_KERNELS};
#undef K
  for (const Kernel* kernel : kernels) {
    if (kernel != nullptr && strncmp(kernel->name, name, strlen(name)) == 0 && fits(*kernel)) return kernel;
  }
  return nullptr;
}

template <class Build>
const Build& build_as(const Kernel& kernel) {
  return *static_cast<const Build*>(kernel.build);
}

[[maybe_unused]] const Kernel* any() {
  return find_kernel("", [](const Kernel&) { return true; });
}

[[maybe_unused]] tilekiln_status fail_kernel(const char* what) {
  return fail(TILEKILN_INTERNAL, "the library has a row for hip without its kernel, %s", what);
}

}  // namespace
}  // namespace tilekiln::hip
