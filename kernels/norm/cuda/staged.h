// Rows too long for a few registers: a block has one at a time in all of its registers, and while it works on it the next ones are on their way
// to shared memory. A thread reads what it asked for itself, so that no barrier is needed for it.
#pragma once

#include "kernels/backends/cuda/mma.h"
#include "kernels/norm/cuda/rows.h"

namespace tilekiln::cuda::norm {

// Takes the place of Held for rows block, block + grid, .. of whole vectors: `begin` before each.
struct Staged {
  uint4 vector[kStagedVectors];
  uint32_t slots;                // of this thread, a vector of each thread apart
  int stages, vectors, columns;  // there are more stages than a row has vectors, or as many
  Team team;
  const Element* x;
  long long x_row, rows, next_row;  // the next vector to ask for
  int next, first;                  // stage of the row's first vector

  __device__ __forceinline__ void ask(int stage) {
    const int j = (team.lane + next * kStagedThreads) * kWide;
    if (next_row < rows && j < columns)
      copy_async(slots + stage * (kStagedThreads * 16), x + next_row * x_row + j, true);
    copy_async_commit();
    if (++next == vectors) next = 0, next_row += team.step;
  }
  __device__ __forceinline__ int after(int stage) const { return stage + 1 == stages ? 0 : stage + 1; }
  __device__ __forceinline__ void begin() {
    copy_async_wait(stages - vectors);
    int stage = first;
#pragma unroll
    for (int i = 0; i < kStagedVectors; ++i, stage = after(stage)) {
      if ((team.lane + i * kStagedThreads) * kWide < columns)
        vector[i] = load_shared(slots + stage * (kStagedThreads * 16));
    }
    for (int i = 0; i < vectors; ++i, first = after(first)) ask(first);
  }
  // f(vector, column, bytes of the row from there on)
  template <class F> __device__ __forceinline__ void each(F&& f) {
#pragma unroll
    for (int i = 0; i < kStagedVectors; ++i) {
      const int j = (team.lane + i * kStagedThreads) * kWide;
      if (j < columns) f(vector[i], j, 16);
    }
  }
};
TILEKILN_DEVICE void stage(Staged& to, const Team& team, const void* x, long long x_row, long long rows, int columns,
                           int stages) {
  extern __shared__ __align__(16) char slots[];
  constexpr int wide = kStagedThreads * kWide;
  to.slots = shared_address(slots) + team.lane * 16, to.stages = stages;
  to.vectors = (columns + wide - 1) / wide, to.columns = columns, to.team = team;
  to.x = static_cast<const Element*>(x), to.x_row = x_row, to.rows = rows, to.next_row = team.row;
  to.next = 0, to.first = 0;
  for (int i = 0; i < stages; ++i) to.ask(i);
}

}  // namespace tilekiln::cuda::norm
