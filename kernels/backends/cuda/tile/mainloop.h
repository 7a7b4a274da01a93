// SPDX-License-Identifier: MIT
// The main loop of a GEMM's consumer: a wgmma group a stage, one in flight, under which the stage before is released.
//
// Invariants: steps [first, last) are uniform over the warp. The stages of the pipeline are structs with tiles `a` and
// `b`. Between multiply_stages and finish_stages the last group is in flight: what is done there is hidden by it, and
// must not touch c.
#pragma once

#include "kernels/backends/cuda/tile/fragment.h"
#include "kernels/backends/cuda/tile/pipeline.h"

namespace tilekiln::cuda {

// c = sum over steps of a[line .. line + 63] b.
template <class Pipe, int kColumns>
TILEKILN_DEVICE void multiply_stages(Consumer<Pipe>& pipe, Fragment<kColumns>& c, int line, int first, int last) {
#pragma unroll 1
  for (int k = first; k < last; ++k) {
    auto& stage = pipe.wait();
    wgmma_fence();
    mma(c, stage.a.from(line), stage.b.from(0), k > first);
    wgmma_commit();
    wgmma_wait<1>();
    pipe.release_previous(k > first);
    pipe.advance();
  }
}
// Sums of a stage as multiply_apart adds them: as they are.
struct PlainSums {
  __device__ __forceinline__ void step(int, int) {}
  __device__ __forceinline__ float operator()(float sum, float part, int, int) const { return sum + part; }
};
// Multiplies as multiply_stages, but every stage is summed apart, kPart columns at a time, and then joined with c in
// fp32: the tensor cores keep few bits of a sum of 8-bit elements. While one warpgroup adds, the other one multiplies.
// No group is in flight afterwards. join.step(k, last) comes before the products of a step, join(sum, part, i,
// column / kPart) is the i-th sum.
template <int kPart, class Pipe, int kColumns, class Join>
TILEKILN_DEVICE void multiply_apart(Consumer<Pipe>& pipe, Fragment<kColumns>& c, int line, int first, int last,
                                    Join&& join) {
  c.clear();
#pragma unroll 1
  for (int k = first; k < last; ++k) {
    join.step(k, last);
    auto& stage = pipe.wait();
#pragma unroll
    for (int column = 0; column < kColumns; column += kPart) {
      Fragment<kPart> part;
      wgmma_fence();
      mma<4>(part, stage.a.from(line), stage.b.from(column), false);
      wgmma_commit();
      wgmma_wait<0>(part);
      if (column + kPart == kColumns) pipe.advance(), pipe.release_previous(true);
#pragma unroll
      for (int i = 0; i < part.kCount; ++i)
        c.v[column / 2 + i] = join(c.v[column / 2 + i], part.v[i], i, column / kPart);
    }
  }
}
// Lets the stages of steps that the warpgroup has no lines of go by.
template <class Pipe> TILEKILN_DEVICE void pass_stages(Consumer<Pipe>& pipe, int steps) {
#pragma unroll 1
  for (int k = 0; k < steps; ++k) {
    pipe.wait();
    pipe.advance();
    pipe.release_previous(true);
  }
}
// Waits for the last group; c = 0 where there was no step.
template <class Pipe, int kColumns>
TILEKILN_DEVICE void finish_stages(Consumer<Pipe>& pipe, Fragment<kColumns>& c, int first, int last) {
  wgmma_wait<0>(c);
  if (first == last) c.clear();
  pipe.release_previous(last > first);
}

}  // namespace tilekiln::cuda
