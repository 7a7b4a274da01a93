// SPDX-License-Identifier: MIT
// The words of device text that NVIDIA's and AMD's GPUs share: CUDA's own under nvcc, under clang what stands for them on AMD.
#pragma once

#ifdef __HIP__
#include "kernels/backends/hip/words.h"
#else
#include "kernels/backends/cuda/meet.h"
#endif
