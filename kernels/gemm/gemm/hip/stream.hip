// SPDX-License-Identifier: MIT
// Stream-K on AMD GPUs: the steps along k of all tiles (tile.h) as one row, of which every workgroup has an equal
// share. One that begins or ends inside a tile leaves its sums in memory, and a second launch adds those of a tile in
// the order of k: the same bits in every run. Emulated (functional), never run on AMD silicon.
#include "kernels/gemm/gemm/hip/tile.h"

namespace tilekiln::hip::gemm {

constexpr int kSums = kDown * kBeside * kAccumulator;  // of a lane

TILEKILN_DEVICE int first_step_of(const StreamParams& of, int worker) {
  return int(u64(worker) * of.steps / of.workers);
}
TILEKILN_DEVICE int owner_of(const StreamParams& of, int step) {
  return int((u64(step + 1) * of.workers - 1) / of.steps);
}

/// Sums that a workgroup leaves: of a tile that it begins inside of, or of one that it begins and does not end.
TILEKILN_DEVICE Global<float> parts_of(const StreamParams& of, int worker, bool inside) {
  return (Global<float>)of.parts + i64(2 * worker + (inside ? 0 : 1)) * kSums * kThreads + thread();
}

}  // namespace tilekiln::hip::gemm

using namespace tilekiln::hip;
using namespace tilekiln::hip::gemm;

TILEKILN_KERNEL(kThreads) void tilekiln_gemm_stream(gemm::StreamParams of) {
  __shared__ __align__(16) T shared[2 * kTile * kLine];
  const Params& p = of.product;
  const int worker = __builtin_amdgcn_workgroup_id_x(), end = first_step_of(of, worker + 1);
  for (int at = first_step_of(of, worker); at < end;) {
    const int tile = at / of.tile_steps, first = at - tile * of.tile_steps;
    const int last = first + end - at < of.tile_steps ? first + end - at : of.tile_steps;
    const Tile t = tile_of(p, tile, 0);
    Sums sum;
    multiply(p, t, first * kSteps, last * kSteps < p.k ? last * kSteps : p.k, shared, sum);
    at += last - first;
    if (last - first == of.tile_steps) {
      finish_tile(p, t, shared, sum);
      continue;
    }
    const Global<float> to = parts_of(of, worker, first > 0);
#pragma unroll
    for (int i = 0; i < kSums; i++)
      to[i * kThreads] = sum[i / kAccumulator / kBeside][i / kAccumulator % kBeside][i % kAccumulator];
  }
}

TILEKILN_KERNEL(kThreads) void tilekiln_gemm_add(gemm::StreamParams of) {
  const int tile = __builtin_amdgcn_workgroup_id_x(), begin = tile * of.tile_steps;
  const int first = owner_of(of, begin), last = owner_of(of, begin + of.tile_steps - 1);
  if (first == last) return;
  const Tile t = tile_of(of.product, tile, 0);
#pragma unroll 1
  for (int at = 0; at < kDown * kBeside; at++) {
    finish_block(of.product, t, at, [&](int r) TILEKILN_LAMBDA {
      float sum = 0;
      for (int worker = first; worker <= last; worker++)
        sum += parts_of(of, worker, first_step_of(of, worker) > begin)[(at * kAccumulator + r) * kThreads];
      return sum;
    });
  }
}
