// SPDX-License-Identifier: MIT
// The second stage of split-KV: one launch over the parts that decode left.
#include "kernels/attention/fmha_fwd_splitkv/hip/cache.h"

namespace tilekiln::hip {
namespace {

tilekiln_status launch_combine(const Site& site, const void* problem) {
  const auto& of = *static_cast<const KvKernelProblem*>(problem);
  const KvProblem& p = of.problem;
  const Kernel* const kernel = find_kernel("fmha_combine_", [&](const Kernel& one) {
    const auto& build = build_as<CombineBuild>(one);
    return (build.bf16 != 0) == (p.dtype == fmha::KvDtype::bf16) && (build.fp8 != 0) == (p.dtype == fmha::KvDtype::fp8);
  });
  if (kernel == nullptr) return fail_kernel("fmha_combine");
  TILEKILN_TRY(check_blocks(p.nhead_q, of.batch, 0));
  CombineProblem row = {};
  fill_cache_places(of, &row.at);
  row.part_out = of.part_out, row.part_lse = of.part_lse;
  row.out = p.out, row.out_batch = of.steps.out, row.out_head = p.out_head, row.out_row = p.out_row;
  row.lse = p.lse, row.lse_batch = of.steps.lse, row.lse_head = p.lse_head;
  row.out_scale = of.out_scale;
  row.nhead_q = p.nhead_q, row.hdim_v = p.hdim_v, row.splits = of.num_splits;
  return launch(
      site, {kernel,
             "tilekiln_fmha_combine",
             {static_cast<unsigned>(of.seqlen_q), static_cast<unsigned>(p.nhead_q), static_cast<unsigned>(of.batch)},
             static_cast<unsigned>(build_as<CombineBuild>(*kernel).threads),
             &row,
             sizeof(row)});
}

}  // namespace
}  // namespace tilekiln::hip

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET, combine) = {tilekiln::hip::launch_combine,
                                                                                    tilekiln::hip::any};
