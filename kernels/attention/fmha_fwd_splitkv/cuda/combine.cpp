// SPDX-License-Identifier: MIT
// The second stage of split-KV: one launch over the parts that decode left.
#include "kernels/attention/fmha_fwd_splitkv/cuda/fill.h"

namespace tilekiln::cuda::fmha_decode {
namespace {

tilekiln_status launch_combine(const Site& site, const void* problem) {
  const auto& of = *static_cast<const KvKernelProblem*>(problem);
  return combine_parts(site, of);
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_decode

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        combine) = {tilekiln::cuda::fmha_decode::launch_combine};
