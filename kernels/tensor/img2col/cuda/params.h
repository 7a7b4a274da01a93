// SPDX-License-Identifier: MIT
// Parameters of CUDA's img2col: the one argument of its kernel, and what the build is made for.
#pragma once

#include "kernels/tensor/img2col/engine.h"

namespace tilekiln::cuda::img2col {

// Division of numbers below 2^31 by one number.
struct Divisor {
  unsigned by, multiplier, shift;  // the quotient: the product's high word, shifted; by 1 it is the number

  static Divisor of(unsigned by) {
    Divisor made = {by, 0, 0};
    while ((2ull << made.shift) < by) ++made.shift;
    made.multiplier = static_cast<unsigned>((1ull << (32 + made.shift)) / by + 1);
    return made;
  }
};

struct Params {
  tensor::Img2col images;
  int width;  // bytes that are moved at once: those of the channels of a group, and every step, are a multiple of them
  int few;    // fewer than 2^31 moves: the divisors hold
  Divisor all, along,
      vectors;  // moves of a row of a group's matrix, of a line of its filter, of the channels of a group
  Divisor patches, of_image, out_width;
};

constexpr int kAtOnce = 4;  // moves of a thread under way

// Constants of a build that the host must know; the cubin holds one as `img2col_build`.
struct Build { int threads; };

}  // namespace tilekiln::cuda::img2col
