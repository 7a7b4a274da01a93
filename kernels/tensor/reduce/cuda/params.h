// SPDX-License-Identifier: MIT
// Parameters of CUDA's reductions: the one argument of their kernels, and what one build of them is made for.
#pragma once

#include "kernels/tensor/reduce/engine.h"

namespace tilekiln::cuda::reduce {

// A number as a sum of two, the second below the last place of the first.
struct Two { float high, low; };

struct Params {
  tensor::Reduce reduce;
  long long all_reduced;  // product of `reduced`
  long long parts;        // of an output's elements, or of a block's columns', by as many blocks
  long long each;         // vectors of a row, or rows of columns, of a part
  Two* values;     // of parts: (outputs, parts), or of columns (parts, outputs, columns); null: there is one part
  float scale;     // of the result
  int wide;        // every line of x begins at 16 bytes
  int lanes;       // threads of a team of rows, 32 or those of a block
  unsigned sign;   // bits that change the sign of values: of a minimum
  int join_lanes;  // threads that add the parts of a column
  // Zeros: of rows a word for each output, whose last part takes all together; of columns one, where all blocks meet.
  unsigned* arrivals;
};

// Blocks that a processor has at once; parts of rows are so many times more, so that what one processor is late by
// others take over.
constexpr int kLineBlocks = 6, kPartBlocks = 4, kColumnBlocks = 3, kRowBlocks = 2, kTurns = 3;

// Constants of a build that the host must know; the cubin holds one as `reduce_build`.
struct Build {
  int threads;
  int dtype;  // by value of the axis
};

}  // namespace tilekiln::cuda::reduce
