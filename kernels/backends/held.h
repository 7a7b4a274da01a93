// SPDX-License-Identifier: MIT
// The words of host text that launches kernels of NVIDIA's and AMD's GPUs alike; TILEKILN_HIP is defined where it is compiled for AMD.
#pragma once

#ifdef TILEKILN_HIP
#include "kernels/backends/hip/host_words.h"
#else
#include "kernels/backends/cuda/held.h"
#endif
