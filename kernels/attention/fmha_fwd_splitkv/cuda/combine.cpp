// SPDX-License-Identifier: MIT
// The second stage of split-KV: one launch over the parts that decode left.
#include "kernels/attention/fmha_fwd_splitkv/cuda/fill.h"

namespace tilekiln::cuda::fmha_decode {
namespace {

tilekiln_status launch_combine(const Site& site, const void* problem) {
  const auto& of = *static_cast<const KvKernelProblem*>(problem);
  const Kernel* const kernel = find_kernel(of.problem);
  if (kernel == nullptr) return fail_kernel("fmha_decode");
  const i64 blocks = i64(of.batch) * of.seqlen_q * of.problem.nhead_q;
  if (blocks > INT32_MAX)
    return fail_argument("q", "had %lld rows of all heads, must have fewer than 2^31 with splits on cuda", blocks);
  Params params = {};
  fill_params(of, &params);
  const Build& build = build_of(*kernel);
  const auto threads = static_cast<unsigned>(threads_of_combine(build.hdim));
  return launch(site, {kernel,
                       "fmha_decode_combine",
                       {static_cast<unsigned>(blocks), 1, 1},
                       threads,
                       0,
                       &params,
                       false,
                       build.early != 0});
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_decode

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        combine) = {tilekiln::cuda::fmha_decode::launch_combine};
