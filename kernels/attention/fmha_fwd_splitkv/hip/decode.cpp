// SPDX-License-Identifier: MIT
// The decode engine of the families over a KV cache: few queries. The heads that share a key head share a tile of rows, so that its keys
// are read once; with splits a workgroup has a part of them, and combine.hip puts the parts together.
#include "kernels/attention/fmha_fwd_splitkv/hip/cache.h"

namespace tilekiln::hip {
namespace {

// Query heads of a tile: all of a key head, but for what a tile has one plane of, or a query's heads too far apart for a buffer.
int pack_of(const KvKernelProblem& of) {
  const KvProblem& p = of.problem;
  const i64 group = p.nhead_k > 0 ? p.nhead_q / p.nhead_k : 1;
  if (p.features.bias == Bias::elementwise || p.features.dropout || group < 1) return 1;
  const i64 span = group * p.q_head + i64(of.seqlen_q) * p.q_row;
  return span < most_bytes / 4 ? static_cast<int>(group) : 1;
}

tilekiln_status launch_decode(const Site& site, const void* problem) {
  const auto& of = *static_cast<const KvKernelProblem*>(problem);
  TILEKILN_TRY(check_cache(of));
  const Kernel* const kernel = find_cache(of.problem);
  if (kernel == nullptr) return fail_kernel("fmha_cache");
  ScaledCacheProblem row = {};
  fill_cache(of, false, &row);
  row.pack = pack_of(of);
  return launch_cache(site, of, *kernel, row);
}

}  // namespace
}  // namespace tilekiln::hip

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET, decode) = {tilekiln::hip::launch_decode,
                                                                                   tilekiln::hip::any};
