// SPDX-License-Identifier: MIT
// The backward's plan for tests/cuda/test_order.py.
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/plan.h"

using tilekiln::cuda::fmha_bwd::Plan;

extern "C" Plan plan_of(long long heads, long long group, long long rows, long long keys, int hdim, int tile_rows,
                        int tile_keys, int masked, int paired, int workers, long long sum_bytes) {
  return tilekiln::cuda::fmha_bwd::plan_of(
      {heads, group, rows, keys, hdim, tile_rows, tile_keys, masked != 0, paired != 0, workers, sum_bytes});
}
