// SPDX-License-Identifier: MIT
// The description of an array for TMA: the CUtensorMap of cuda.h, opaque, made by cuTensorMapEncodeTiled.
#pragma once

#include <stdint.h>

namespace tilekiln::cuda {

struct alignas(128) TensorMap { uint64_t words[16]; };

}  // namespace tilekiln::cuda
