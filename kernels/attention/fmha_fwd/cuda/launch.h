// SPDX-License-Identifier: MIT
// Parameters of the kernels from a checked call of fmha_fwd: what the pipelines have in common. Included once, by the
// file of a pipeline, which is compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#pragma once
#include "kernels/attention/fmha_fwd/call.h"
#include "kernels/attention/fmha_fwd/cuda/addresses.h"
#include "kernels/backends/cuda/held.h"
#include "kernels/generated/fmha_fwd.h"

#define TILEKILN_JOIN(a, b, c, d) a##b##c##d
#define TILEKILN_ENGINE(target, pipeline) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_, pipeline)

namespace tilekiln::cuda::fmha_fwd {
namespace {

const Build& build_of(const Kernel& kernel) { return *static_cast<const Build*>(kernel.build); }

Dtype dtype_of(const Build& build) {
  if (build.fp8 != 0) return build.fp32 != 0 ? Dtype::fp8fp32 : Dtype::fp8bf16;
  return build.fp16 != 0 ? Dtype::fp16 : Dtype::bf16;
}

// The smallest kernel of the dtype that holds the instance's head dims; null: the library has none.
const Kernel* find_kernel(const Choice& choice, Dtype dtype) {
  const auto instance = tilekiln::fmha_fwd::unpack(choice.row->codes, choice.row->integers);
  const Kernel* best = nullptr;
  for (const Kernel* kernel : held) {
    if (kernel == nullptr || dtype_of(build_of(*kernel)) != dtype) continue;
    const Build& build = build_of(*kernel);
    if (build.hdim_q < static_cast<int>(instance.hdim_q) || build.hdim_v < static_cast<int>(instance.hdim_v)) continue;
    const auto area = [](const Build& of) { return of.hdim_q * of.hdim_v; };
    if (best == nullptr || area(build) < area(build_of(*best))) best = kernel;
  }
  return best;
}

tilekiln_status fail_kernel() {
  return fail(TILEKILN_INTERNAL, "the library has a row of fmha_fwd for cuda without its kernel");
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_fwd
