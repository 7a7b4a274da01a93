// The row of CUDA's reductions: the one argument of their kernels, and what one build of them is made for.
#pragma once

#include "kernels/tensor/reduce/engine.h"

namespace tilekiln::cuda::reduce {

// A number as a sum of two, the second below the last place of the first.
struct Two { float high, low; };

struct Row {
  tensor::Reduce reduce;
  long long all_reduced;  // product of `reduced`
  long long parts;        // of an output's elements, by as many teams
  Two* values;            // of parts, (parts, outputs, columns); null: there is one part
  float scale;            // of the result
  int wide;               // every line of x begins at 16 bytes
  int lanes;              // threads of a team of rows, 32 or those of a block
  unsigned sign;          // bits that change the sign of values: of a minimum
  int join_lanes;         // threads that add the parts of a value
  unsigned* word;         // zero: blocks that have left parts meet by it
};

// Blocks that a processor has at once.
constexpr int kLineBlocks = 6, kPartBlocks = 4, kColumnBlocks = 3, kRowBlocks = 2;

// Constants of a build that the host must know; the cubin holds one as `reduce_build`.
struct Build {
  int threads;
  int dtype;  // by value of the axis
};

}  // namespace tilekiln::cuda::reduce
