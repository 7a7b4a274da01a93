// SPDX-License-Identifier: MIT
// The waves engine of the families over a KV cache: many queries, a launch without splits.
#include "kernels/attention/fmha_fwd_splitkv/hip/cache.h"
#include "kernels/generated/fmha_batch_prefill.h"

namespace tilekiln::hip {
namespace {

// Tells whether the instance reads a pool by 32-bit offsets: an axis of fmha_batch_prefill's algorithms, which the other families lack.
bool loads_near(const KvKernelProblem& of, const Choice& choice) {
  constexpr int small = 1;  // of kv_load: any, small, large
  return of.cache_bytes > 0 && choice.how->fields[tilekiln::fmha_batch_prefill::fields::kv_load] == small;
}

tilekiln_status launch_waves(const Site& site, const void* problem) {
  const auto& of = *static_cast<const KvKernelProblem*>(problem);
  TILEKILN_TRY(check_cache(of));
  const Kernel* const kernel = find_cache(of.problem);
  if (kernel == nullptr) return fail_kernel("fmha_cache");
  ScaledCacheProblem row = {};
  fill_cache(of, loads_near(of, *site.choice), &row);
  return launch_cache(site, of, *kernel, row);
}

}  // namespace
}  // namespace tilekiln::hip

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET, waves) = {tilekiln::hip::launch_waves,
                                                                                  tilekiln::hip::any};
