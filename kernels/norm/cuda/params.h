// SPDX-License-Identifier: MIT
// Parameters of CUDA's kernels over rows of arrays: a checked problem, and how its rows may be read. What one build is
// made for.
#pragma once

#include "kernels/norm/backward_engine.h"
#include "kernels/norm/cross_entropy.h"
#include "kernels/norm/engine.h"
#include "kernels/norm/gated.h"

namespace tilekiln::cuda::norm {

template <class Problem> struct Params {
  Problem problem;
  int wide;    // every row of every array begins at 16 bytes
  int warps;   // a row a warp; else a row a block
  int stages;  // vectors of a thread in shared memory, of rows that lie there
};

constexpr int kStagedThreads = 512;                 // of a block that has a long row
constexpr int kCluster = 4, kClusterThreads = 512;  // blocks that share a longer one, and threads of each
constexpr int kClusterWarps = kCluster * kClusterThreads / 32;
constexpr int kRingVectors = 16;  // of a thread of it that registers hold at most

// The row of the derivatives of norms.
struct BackwardParams {
  tilekiln::norm::Backward problem;
  unsigned* word;  // zero: all blocks meet by it
  int wide;        // as above
  int lanes;       // threads that share a row
  int stages;      // rows of a team on their way
  int width;       // columns whose parts a block adds at once, a power of two
};
constexpr int kBackwardThreads = 512;  // of a block

// Constants of a build that the host must know; the cubin holds one as `rows_build`.
struct Build {
  int held;        // vectors of 16 bytes that a thread holds
  int stages;      // vectors, or rows, of a thread on their way to shared memory at most
  int dtype;       // by value of the axis
  unsigned lanes;  // threads that share a row of `rows` at most
  int clusters;    // 1: it has kernels of clusters
  int early;       // 1: `rows`, `rows_whole` and `added_whole` may begin under the launch before them
};

}  // namespace tilekiln::cuda::norm
