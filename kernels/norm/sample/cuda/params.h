// SPDX-License-Identifier: MIT
// Parameters of CUDA's sample: the one argument of its kernel, and what one build is made for.
#pragma once

#include "kernels/norm/sample/engine.h"

namespace tilekiln::cuda::sample {

struct Params {
  tilekiln::norm::Sample problem;
  float* values;     // (teams, columns): numbers of a team's row after the penalties; null: no row has any
  unsigned* counts;  // (teams, columns): how often a token is there
  int team;          // blocks of a cluster, which share a row
};

constexpr int kTeam = 8;                                  // the most blocks
constexpr int kDigitBits = 4, kDigits = 1 << kDigitBits;  // of a step towards a cut

// Constants of a build that the host must know; the cubin holds one as `sample_build`.
struct Build {
  int threads;
  int dtype;  // by value of the axis
  int teams;  // 1: blocks may share a row
};

}  // namespace tilekiln::cuda::sample
