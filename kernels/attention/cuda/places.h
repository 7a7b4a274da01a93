// SPDX-License-Identifier: MIT
// Places of sequences (kernels/attention/places.h), on CUDA.
#pragma once

#include "kernels/backends/cuda/ptx.h"

#define TILEKILN_READ_ONLY(pointer) __ldg(pointer)
#include "kernels/attention/places.h"

namespace tilekiln::cuda {

using fmha::clamp;
using fmha::find_keys;
using fmha::find_page;
using fmha::find_queries;
using fmha::Keys;
using fmha::Page;
using fmha::Queries;

}  // namespace tilekiln::cuda
