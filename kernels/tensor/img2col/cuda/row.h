// The row of CUDA's img2col: the one argument of its kernel, and what the build is made for.
#pragma once

#include "kernels/tensor/img2col/engine.h"

namespace tilekiln::cuda::img2col {

struct Row {
  tensor::Img2col images;
  int width;  // bytes that are moved at once: those of the channels of a group, and every step, are a multiple of them
  int vectors;  // of the channels of a group
  int lanes;    // threads that share a row of a group's matrix, a power of two
};

// What the host must know of a build; the cubin holds one as `img2col_build`.
struct Build { int threads; };

}  // namespace tilekiln::cuda::img2col
