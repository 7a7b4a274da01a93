// SPDX-License-Identifier: MIT
// Places of sequences (kernels/attention/places.h), on AMD GPUs.
#pragma once
#include "kernels/backends/hip/vocabulary.h"

#define TILEKILN_READ_ONLY(pointer) (*(tilekiln::hip::Global<const int>)(pointer))
#include "kernels/attention/places.h"

namespace tilekiln::fmha {
using hip::max, hip::min;
}
#include "kernels/attention/key_range.h"
