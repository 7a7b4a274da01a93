// SPDX-License-Identifier: MIT
// Changes of a tile's scores before their softmax, for NVIDIA's and AMD's layouts of them.
//
// `each(change)` makes every score s of a lane change(s, line, column): of the lane's row number `line`, and so many
// keys behind the lane's first one. The lane's rows are `apart` rows from each other.
#pragma once

#include "kernels/backends/words.h"

#ifndef __HIP__
#define TILEKILN_LAMBDA __attribute__((always_inline))
#endif

namespace tilekiln::cuda {

// s = outer tanh(inner s)
template <class Each> TILEKILN_DEVICE void cap_scores(const Each& each, float inner, float outer = 1.f) {
  each([&](float s, int, int) TILEKILN_LAMBDA { return outer * tanh_approx(s * inner); });
}

// s -= slope |distance - column|, `distance` from the lane's first row and its first key.
template <class Each>
TILEKILN_DEVICE void slant_scores(const Each& each, float slope, float distance, int apart = 0) {
  each([&](float s, int line, int column)
           TILEKILN_LAMBDA { return s - slope * fabsf(distance + float(line * apart - column)); });
}

}  // namespace tilekiln::cuda
