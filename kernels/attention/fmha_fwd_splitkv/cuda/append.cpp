// The append engine: a checked call becomes the row of one launch.
#include "kernels/attention/fmha_fwd_appendkv/cuda/row.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/launch.h"

namespace tilekiln::cuda::fmha_append {
namespace {

using fmha::AppendKernelProblem;
using fmha::AppendProblem;

void fill_arrays(const AppendKernelProblem& of, Row* row) {
  const AppendProblem& p = of.problem;
  const bool paged = p.pages.page_size != 0;
  row->q = static_cast<uint16_t*>(p.q);
  row->k = static_cast<uint16_t*>(p.k);
  row->v = static_cast<uint16_t*>(p.v);
  row->knew = static_cast<const uint16_t*>(p.knew);
  row->vnew = static_cast<const uint16_t*>(p.vnew);
  row->q_batch = of.steps.q;
  row->q_head = p.q_head;
  row->q_row = p.q_row;
  row->k_page = paged ? p.pages.k_page : of.steps.k;
  row->k_head = p.k_head;
  row->k_key = p.k_row;
  row->v_page = paged ? p.pages.v_page : of.steps.v;
  row->v_head = p.v_head;
  row->v_key = p.v_row;
  row->knew_batch = of.steps.knew;
  row->knew_head = p.knew_head;
  row->knew_row = p.knew_row;
  row->vnew_batch = of.steps.vnew;
  row->vnew_head = p.vnew_head;
  row->vnew_row = p.vnew_row;
}

void fill_rotation(const AppendKernelProblem& of, Row* row) {
  const AppendProblem& p = of.problem;
  row->rotary_cos = p.rotary_cos;
  row->rotary_sin = p.rotary_sin;
  row->cos_row = p.rotary_cos_row;
  row->sin_row = p.rotary_sin_row;
  row->positions = of.positions;
  row->rotary_dim = p.rope == fmha::Rope::none ? 0 : p.rotary_dim;
  row->interleaved = p.rope == fmha::Rope::interleaved ? 1 : 0;
  row->rotary_fp32 = p.rotary_fp32 ? 1 : 0;
  row->q_advances = p.q_advances ? 1 : 0;
}

tilekiln_status launch_append(const Site& site, const void* problem) {
  const auto& of = *static_cast<const AppendKernelProblem*>(problem);
  const AppendProblem& p = of.problem;
  const auto build_of = [](const Kernel& one) { return static_cast<const Build*>(one.build); };
  const Kernel* const kernel = find_kernel(
      "fmha_append", [&](const Kernel& one) { return (build_of(one)->fp16 != 0) == (p.dtype == fmha::KvDtype::fp16); });
  if (kernel == nullptr) return fail_kernel("fmha_append");
  const i64 blocks = i64(of.batch) * (of.seqlen_q > of.seqlen_new ? of.seqlen_q : of.seqlen_new);
  if (blocks > INT32_MAX)
    return fail_argument("knew", "had %lld tokens of all sequences, must have fewer than 2^31 on cuda", blocks);
  Row row = {};
  fill_places(of.places, p.pages, &row);
  fill_arrays(of, &row);
  fill_rotation(of, &row);
  row.seqlen_q_most = of.seqlen_q;
  row.seqlen_k_most = INT32_MAX;
  row.seqlen_new = of.seqlen_new;
  row.batch = of.batch;
  row.nhead_q = p.nhead_q;
  row.nhead_k = p.nhead_k;
  row.hdim_q = p.hdim_q;
  row.hdim_v = p.hdim_v;
  const auto threads = static_cast<unsigned>(build_of(*kernel)->threads);
  return launch(site, {kernel, "fmha_append", {static_cast<unsigned>(blocks), 1, 1}, threads, 0, &row});
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_append

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        append) = {tilekiln::cuda::fmha_append::launch_append};
