// SPDX-License-Identifier: MIT
// Blocks of one launch that wait for each other, or of which the last one goes on alone.
#pragma once

#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda {

constexpr bool kBlocksMeet = true;
constexpr int kMostPolls = 1 << 22;  // of a word before the kernel traps: a hang would take the device along

// All blocks of a cooperative launch: what they wrote before is there for all behind it. `word` is zero, and zero again
// when all have left.
TILEKILN_DEVICE void meet_blocks(unsigned* word) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned all = gridDim.x, last = 2 * all - 1;
    unsigned seen;
    int polls = 0;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(seen) : "l"(word), "r"(last) : "memory");
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(word) : "memory");
      if (++polls > kMostPolls) __trap();
    } while (seen < all);
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(seen) : "l"(word), "r"(last) : "memory");
  }
  __syncthreads();
}

// Tells whether this block is the last of `all` that come here: what the others wrote before is there for it. `word` is
// zero, and zero again when all have come; `shared`: a word of this block's.
TILEKILN_DEVICE bool is_last(unsigned* word, unsigned all, unsigned* shared) {
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(all - 1) : "memory");
    *shared = before;
  }
  __syncthreads();
  const bool last = *shared == all - 1;
  __syncthreads();
  return last;
}

}  // namespace tilekiln::cuda
