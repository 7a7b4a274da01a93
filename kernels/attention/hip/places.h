// SPDX-License-Identifier: MIT
// Places of sequences (kernels/attention/places.h), on AMD GPUs.
#pragma once
#include "kernels/backends/hip/vocabulary.h"

#define TILEKILN_DEVICE TK_DEVICE
#define TILEKILN_READ_ONLY(pointer) (*(const TK_GLOBAL int*)(pointer))
#include "kernels/attention/places.h"
