// SPDX-License-Identifier: MIT
// Weights of a CTA in the order in which they are multiplied, and warps that copy them into a ring in shared memory.
#pragma once

#include "kernels/backends/cuda/decoder/params.h"
#include "kernels/backends/cuda/vectors.h"

namespace tilekiln::cuda::decoder {

struct Barriers { uint64_t full[kMostStages], empty[kMostStages]; };

TILEKILN_DEVICE int tiles_of(int columns) {
  const int all = columns / kColumns, mine = all - int(blockIdx.x) + int(gridDim.x) - 1;
  return mine / int(gridDim.x);
}
TILEKILN_DEVICE int column_of(int tile) { return (int(blockIdx.x) + tile * int(gridDim.x)) * kColumns; }

// The place of a stage in the ring.
struct Place {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

// Walks through the stages of a CTA in the order in which they are multiplied.
struct Weights {
  const Params& p;
  int layer = 0, part = -1, tile = 0, first = 0, tiles = 0, depth = 0;
  const uint16_t *data = nullptr, *up = nullptr;

  __device__ __forceinline__ bool there() const { return layer <= p.count; }
  __device__ __forceinline__ void end() { layer = p.count + 1; }
  __device__ __forceinline__ void begin_part() {
    do {
      if (++part == 4) part = 0, ++layer;
      up = nullptr;
      if (layer == p.count) {
        if (part > 0 || p.head == nullptr) return end();
        data = p.head, depth = p.hidden, tiles = tiles_of(p.vocabulary);
        if (tiles == 0) return end();
        break;
      }
      const Layer& of = p.layers[layer];
      if (part == 0) {
        data = of.qkv, depth = p.hidden, tiles = tiles_of((p.heads + 2 * p.kv_heads) * HDIM);
      } else if (part == 1) {
        data = of.out, depth = p.heads * HDIM, tiles = tiles_of(p.hidden);
      } else if (part == 2) {
        data = of.gate, up = of.up, depth = p.hidden, tiles = 2 * tiles_of(p.inner);
      } else {
        data = of.down, depth = p.inner, tiles = tiles_of(p.hidden);
      }
    } while (tiles == 0);
    tile = first = 0;
  }
  __device__ __forceinline__ void advance() {
    if ((first += kDepth) < depth) return;
    first = 0;
    if (++tile == tiles) begin_part();
  }
  __device__ __forceinline__ uint32_t bytes() const { return uint32_t(min(kDepth, depth - first)) * 2; }
  __device__ __forceinline__ const uint16_t* row(int i) const {
    const uint16_t* const of = up != nullptr && tile & 1 ? up : data;
    const int n = column_of(up != nullptr ? tile >> 1 : tile) + i;
    return of + int64_t(n) * depth + first;
  }
};

// The warp that copies. Up to `flight` stages are on their way at once: all else that reads memory, the words at which
// CTAs meet above all, would wait behind more of them.
TILEKILN_DEVICE void copy_weights(const Params& p, Barriers& barriers, uint32_t ring) {
  const int lane = threadIdx.x & 31;
  Weights load = {p};
  load.begin_part();
  Place at, landed;
  for (int i = 0; load.there(); ++i, load.advance(), at.advance(p.stages)) {
    wait(barriers.empty[at.stage], at.phase ^ 1);
    if (i >= p.flight) wait(barriers.full[landed.stage], landed.phase), landed.advance(p.stages);
    if (lane == 0) arrive_expecting(barriers.full[at.stage], kColumns * load.bytes());
    __syncwarp();
    if (lane < kColumns)
      bulk_load(ring + at.stage * kStageBytes + lane * kRowBytes, load.row(lane), load.bytes(),
                barriers.full[at.stage]);
  }
}

}  // namespace tilekiln::cuda::decoder
