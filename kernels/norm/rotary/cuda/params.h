// SPDX-License-Identifier: MIT
// Parameters of CUDA's rotary: the one argument of its kernel, and what one build of it is made for.
#pragma once

#include "kernels/norm/rotary/engine.h"

namespace tilekiln::cuda::rotary {

struct Params {
  tilekiln::norm::Rotary problem;
  int wide;      // heads, and rows of the tables, begin at 16 bytes, and so do pairs and what lies behind them
  int units;     // of a head: a vector of pairs, or a pair
  int rest;      // vectors or elements of a head that are copied
  int together;  // heads that a block takes at once, a thread a vector of pairs of each; 0: its threads share all
};

// Constants of a build that the host must know; the cubin holds one as `rotary_build`.
struct Build {
  int threads;  // of a block at most
  int dtype;    // by value of the axis
  int early;    // 1: it may begin under the launch before it
};

}  // namespace tilekiln::cuda::rotary
