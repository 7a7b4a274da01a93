// SPDX-License-Identifier: MIT
// Matrix products on AMD GPUs: out = activation(alpha row_scale column_scale a b + bias, extras), a workgroup a tile
// (tile.h). Emulated (functional), never run on AMD silicon.
#include "kernels/gemm/gemm/hip/tile.h"

using namespace tilekiln::hip;
using namespace tilekiln::hip::gemm;

TILEKILN_KERNEL(kThreads) void tilekiln_gemm(gemm::Params p) {
  __shared__ __align__(16) T shared[2 * kTile * kLine];
  const Tile t = tile_of(p, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y());
  Sums sum;
  multiply(p, t, 0, p.k, shared, sum);
  finish_tile(p, t, shared, sum);
}
