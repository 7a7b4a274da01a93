// SPDX-License-Identifier: MIT
// The append engine: a checked call becomes the problem of one launch.
#include "kernels/attention/fmha_fwd_splitkv/hip/cache.h"

namespace tilekiln::hip {
namespace {

using fmha::AppendKernelProblem;

tilekiln_status launch_append(const Site& site, const void* problem) {
  const auto& of = *static_cast<const AppendKernelProblem*>(problem);
  const fmha::AppendProblem& p = of.problem;
  if (p.q_gamma != nullptr)
    return fail_argument("q_gamma", "was given, must be null on an AMD GPU: call rmsnorm2d for the heads before");
  const Kernel* const kernel = find_kernel("fmha_append_", [&](const Kernel& one) {
    const auto& build = build_as<AppendBuild>(one);
    return (build.bf16 != 0) == (p.dtype == fmha::KvDtype::bf16) && (build.fp8 != 0) == (p.dtype == fmha::KvDtype::fp8);
  });
  if (kernel == nullptr) return fail_kernel("fmha_append");
  const int tokens = of.seqlen_q > of.seqlen_new ? of.seqlen_q : of.seqlen_new;
  TILEKILN_TRY(check_blocks(p.nhead_q, of.batch, 0));
  AppendProblem row = {};
  fmha::fill_append(of, &row);
  return launch(site, {kernel,
                       "tilekiln_fmha_append",
                       {static_cast<unsigned>(tokens), static_cast<unsigned>(of.batch), 1},
                       static_cast<unsigned>(build_as<AppendBuild>(*kernel).threads),
                       &row,
                       sizeof(row)});
}

}  // namespace
}  // namespace tilekiln::hip

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET, append) = {tilekiln::hip::launch_append,
                                                                                   tilekiln::hip::any};
