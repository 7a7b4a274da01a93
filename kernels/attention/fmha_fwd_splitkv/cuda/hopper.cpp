// SPDX-License-Identifier: MIT
// The hopper engine of the families over a KV cache: many queries, by the kernels of fmha_fwd, whose loader follows pages. What the copy
// engine cannot follow the decode engine answers.
#include "kernels/attention/fmha_fwd/cuda/fill.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/launch.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/queries.h"

namespace tilekiln::cuda::fmha_fwd {
namespace {

// Rows from one page, or sequence, to the next; -1: they are no whole rows.
i64 rows_between(i64 step, i64 row) { return step == 0 ? 0 : row > 0 && step % row == 0 ? step / row : -1; }

// Strides of the arrays for TMA, in whole rows.
struct Rows { i64 q_row, q_sequence, k_page, v_page, out_row; };

// False: it cannot follow them.
bool find_rows(const KvKernelProblem& of, Rows* rows) {
  const KvProblem& p = of.problem;
  const fmha::KvPages& pages = p.pages;
  const bool paged = pages.page_size != 0, group = p.features.group;
  if (paged && pages.layout == fmha::KvLayout::vectorized) return false;
  if (p.hdim_q % 8 != 0 || p.hdim_v % 8 != 0 || !(p.softmax_scale > 0)) return false;
  const auto follows = [](const void* data, std::initializer_list<i64> steps) {
    bool good = reinterpret_cast<uintptr_t>(data) % 16 == 0;
    for (const i64 step : steps) good = good && step >= 0 && step % 8 == 0;
    return good;
  };
  if (!follows(p.q, {p.q_row, p.q_head, of.steps.q}) || !follows(p.k, {p.k_row, p.k_head, k_step(of)}) ||
      !follows(p.v, {p.v_row, p.v_head, v_step(of)}) || !follows(p.out, {p.out_row, p.out_head, of.steps.out}))
    return false;
  const bool one = !group && of.seqlen_q == 1;  // its row has no step: a sequence is a row
  rows->q_row = one ? of.steps.q : p.q_row;
  rows->out_row = p.out_row;
  rows->q_sequence = group || of.batch == 1 ? 0 : rows_between(of.steps.q, rows->q_row);
  // Pages of one key have no step between keys.
  const auto cache_rows = [&](i64 step, i64 row) { return rows_between(step, row > 0 ? row : step); };
  rows->k_page = cache_rows(k_step(of), p.k_row);
  rows->v_page = cache_rows(v_step(of), p.v_row);
  const i64 most = paged ? of.places.pages : of.batch;
  const auto reaches = [&](i64 step, i64 count) { return step >= 0 && (step == 0 || step <= INT32_MAX / (count + 1)); };
  return reaches(rows->q_sequence, of.batch) && rows->k_page >= 0 && rows->v_page >= 0 &&
         (most == INT32_MAX || (reaches(rows->k_page, most) && reaches(rows->v_page, most)));
}

// The most rows, of those that a tile is made of, that never lie in two pages.
int box_of(const KvKernelProblem& of, int keys) {
  const int page = of.problem.pages.page_size;
  if (page == 0) return keys;
  if (of.places.first_key != nullptr) return 1;
  int a = page, b = keys;
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// Packed rows, as params.h says.
tilekiln_status encode_rows(const KvProblem& p, const char* name, const void* data, int hdim, int nhead, i64 row,
                            i64 head, int box, int device, TensorMap* map) {
  const uint64_t step = row > 0 ? static_cast<uint64_t>(row) * 2 : 16;
  RowArray array = {
      name, data != nullptr ? data : p.q, p.dtype == fmha::KvDtype::fp16 ? TILEKILN_FP16 : TILEKILN_BF16, {}, {}};
  array.lengths[0] = static_cast<uint64_t>(hdim);
  array.lengths[1] = kFar;
  array.lengths[2] = array.lengths[3] = 2 * static_cast<uint64_t>(kFar);
  array.lengths[4] = static_cast<uint64_t>(nhead);
  array.strides[0] = array.strides[1] = step;
  array.strides[2] = (uint64_t(1) << 34) - step;
  array.strides[3] = nhead > 1 ? static_cast<uint64_t>(head) * 2 : 16;
  return encode(array, static_cast<uint32_t>(box), device, map);
}

void fill_addresses(const KvKernelProblem& of, const Rows& rows, Params* params) {
  const KvProblem& p = of.problem;
  const bool group = p.features.group;
  // A row is counted from its sequence's start, which batch mode's own strides hold already.
  const auto batch_step = [&](i64 step, i64 row_step) { return group ? 0 : step - rows.q_sequence * row_step; };
  fill_results(of, batch_step(of.steps.out, rows.out_row), rows.out_row, batch_step(of.steps.lse, 1),
               batch_step(of.steps.bias, p.bias_row), params);
  params->rows_q = static_cast<int>(rows.q_sequence);
  params->k_page = static_cast<int>(rows.k_page);
  params->v_page = static_cast<int>(rows.v_page);
}

tilekiln_status launch_hopper(const Site& site, const void* problem) {
  const auto& of = *static_cast<const KvKernelProblem*>(problem);
  const KvProblem& p = of.problem;
  const Kernel* const kernel = find_kernel(p);
  if (kernel == nullptr) return fail_kernel("fmha_fwd");
  const Build& build = build_of(*kernel);
  Rows rows;
  if (!find_rows(of, &rows)) return launch_decode(site, of);
  Params params = {};
  TILEKILN_TRY(fill_tiles(of, build, &params));
  params.box = box_of(of, build.keys);
  const int device = site.device.id;
  TILEKILN_TRY(encode_rows(p, "q", p.q, p.hdim_q, p.nhead_q, rows.q_row, p.q_head,
                           p.features.dropout ? dropped_box : build.query_box, device, &params.q));
  const auto key_row = [&](i64 own, i64 page) { return own > 0 ? own : page; };
  TILEKILN_TRY(encode_rows(p, "k", p.k, p.hdim_q, p.nhead_k, key_row(p.k_row, p.pages.k_page), p.k_head, params.box,
                           device, &params.k));
  TILEKILN_TRY(encode_rows(p, "v", p.v, p.hdim_v, p.nhead_k, key_row(p.v_row, p.pages.v_page), p.v_head, params.box,
                           device, &params.v));
  fill_places(of.places, p.pages, &params);
  fill_scores(p, kGroup | kCache, &params);
  fill_addresses(of, rows, &params);
  TILEKILN_TRY(zero_word(device, site.stream, &params.next_tile));
  const int workers = facts(device)->multiprocessors;
  const auto grid = static_cast<unsigned>(params.tiles < workers ? params.tiles : workers);
  return launch(site, {kernel,
                       "fmha_fwd_hopper",
                       {grid, 1, 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(build.shared_bytes),
                       &params});
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_fwd

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        hopper) = {tilekiln::cuda::fmha_fwd::launch_hopper};
