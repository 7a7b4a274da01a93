// The hopper engine of the families over a KV cache: many queries, by the kernels of fmha_fwd, whose loader follows pages. What the copy
// engine cannot follow the decode engine answers.
#include "kernels/attention/fmha_fwd/cuda/fill.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/launch.h"

extern "C" __attribute__((weak, visibility("hidden")))
const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET, decode);

namespace tilekiln::cuda::fmha_fwd {
namespace {

using fmha::KvKernelProblem;
using fmha::KvProblem;

const Build& build_of(const Kernel& kernel) { return *static_cast<const Build*>(kernel.build); }

// The smallest that holds the head dims of a call.
const Kernel* find_kernel(const KvProblem& p) {
  const bool fp16 = p.dtype == fmha::KvDtype::fp16;
  const Kernel* best = nullptr;
  cuda::find_kernel("fmha_fwd_d", [&](const Kernel& kernel) {
    const Build& build = build_of(kernel);
    const bool fits = (build.fp16 != 0) == fp16 && build.hdim_q >= p.hdim_q && build.hdim_v >= p.hdim_v;
    const auto area = [](const Build& of) { return of.hdim_q * of.hdim_v; };
    if (fits && (best == nullptr || area(build) < area(build_of(*best)))) best = &kernel;
    return false;
  });
  return best;
}

// Rows from one page, or sequence, to the next; -1: they are no whole rows.
i64 rows_between(i64 step, i64 row) { return step == 0 ? 0 : row > 0 && step % row == 0 ? step / row : -1; }

// How the arrays lie for the copy engine: whole rows apart.
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
  const i64 k_step = paged   ? pages.k_page
                     : group ? 0
                             : of.steps.k,
            v_step = paged   ? pages.v_page
                     : group ? 0
                             : of.steps.v;
  if (!follows(p.q, {p.q_row, p.q_head, of.steps.q}) || !follows(p.k, {p.k_row, p.k_head, k_step}) ||
      !follows(p.v, {p.v_row, p.v_head, v_step}) || !follows(p.out, {p.out_row, p.out_head, of.steps.out}))
    return false;
  const bool one = !group && of.seqlen_q == 1;  // its row has no step: a sequence is a row
  rows->q_row = one ? of.steps.q : p.q_row;
  rows->out_row = p.out_row;
  rows->q_sequence = group || of.batch == 1 ? 0 : rows_between(of.steps.q, rows->q_row);
  // Pages of one key have no step between keys.
  const auto cache_rows = [&](i64 step, i64 row) { return rows_between(step, row > 0 ? row : step); };
  rows->k_page = cache_rows(k_step, p.k_row);
  rows->v_page = cache_rows(v_step, p.v_row);
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

// Packed rows, as row.h says.
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

void fill_addresses(const KvKernelProblem& of, const Rows& rows, Row* row) {
  const KvProblem& p = of.problem;
  const bool group = p.features.group;
  // A row is counted from its sequence's start, which batch mode's own strides hold already.
  const auto batch_step = [&](i64 step, i64 row_step) { return group ? 0 : step - rows.q_sequence * row_step; };
  row->out = static_cast<uint16_t*>(p.out);
  row->out_batch = batch_step(of.steps.out, rows.out_row);
  row->out_head = p.out_head;
  row->out_row = rows.out_row;
  row->lse = p.lse;
  row->lse_batch = batch_step(of.steps.lse, 1);
  row->lse_head = p.lse_head;
  row->bias = static_cast<const uint16_t*>(p.bias);
  row->bias_batch = batch_step(of.steps.bias, p.bias_row);
  row->bias_head = p.bias_head;
  row->bias_row = p.bias_row;
  row->alibi_slopes = p.alibi_slopes;
  row->alibi_batch = of.steps.alibi;
  row->sink = p.sink;
  row->rows_q = static_cast<int>(rows.q_sequence);
  row->k_page = static_cast<int>(rows.k_page);
  row->v_page = static_cast<int>(rows.v_page);
}

tilekiln_status launch_hopper(const Site& site, const void* problem) {
  const auto& of = *static_cast<const KvKernelProblem*>(problem);
  const KvProblem& p = of.problem;
  const Kernel* const kernel = find_kernel(p);
  if (kernel == nullptr) return fail_kernel("fmha_fwd");
  const Build& build = build_of(*kernel);
  Rows rows;
  if (!find_rows(of, &rows)) {
    const Engine* const decode = &TILEKILN_ENGINE(TILEKILN_TARGET, decode);
    if (p.features.dropout || decode == nullptr)
      return fail_argument(
          "q",
          "and the cache lay as the copy engine cannot follow, must have head dims and strides that are multiples "
          "of 8, 0 or more, in whole rows, and a softmax_scale above 0, for dropout on cuda");
    return decode->launch(site, problem);
  }
  if (p.randval != nullptr)
    return fail_argument("randval", "was given, must be null on cuda: its bytes are not stored");
  const i64 blocks = (of.seqlen_q + build.query_rows - 1) / build.query_rows, tiles = blocks * p.nhead_q * of.batch;
  if (tiles > INT32_MAX / 2)
    return fail_argument("q", "had %lld blocks of %d queries over all heads, must have fewer than 2^30 on cuda", tiles,
                         build.query_rows);
  Row row = {};
  row.box = box_of(of, build.keys);
  const int device = site.device.id;
  TILEKILN_TRY(encode_rows(p, "q", p.q, p.hdim_q, p.nhead_q, rows.q_row, p.q_head, build.query_box, device, &row.q));
  const auto key_row = [&](i64 own, i64 page) { return own > 0 ? own : page; };
  TILEKILN_TRY(encode_rows(p, "k", p.k, p.hdim_q, p.nhead_k, key_row(p.k_row, p.pages.k_page), p.k_head, row.box,
                           device, &row.k));
  TILEKILN_TRY(encode_rows(p, "v", p.v, p.hdim_v, p.nhead_k, key_row(p.v_row, p.pages.v_page), p.v_head, row.box,
                           device, &row.v));
  fill_places(of.places, p.pages, &row);
  fill_scores(p, kGroup | kCache, &row);
  fill_addresses(of, rows, &row);
  row.batch = of.batch;
  row.nhead_q = p.nhead_q;
  row.nhead_k = p.nhead_k;
  row.seqlen_q_most = of.seqlen_q;
  row.seqlen_k_most = of.seqlen_k;
  row.hdim_v = p.hdim_v;
  row.query_blocks = static_cast<int>(blocks);
  row.tiles = static_cast<int>(tiles);
  row.head_group = head_group(i64(of.batch) * p.nhead_q, i64(of.seqlen_k) * 2 * (p.hdim_q + p.hdim_v));
  TILEKILN_TRY(zero_word(device, site.stream, &row.next_tile));
  const int workers = facts(device)->multiprocessors;
  const auto grid = static_cast<unsigned>(tiles < workers ? tiles : workers);
  return launch(site, {kernel,
                       "fmha_fwd_hopper",
                       {grid, 1, 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(build.shared_bytes),
                       &row});
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_fwd

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        hopper) = {tilekiln::cuda::fmha_fwd::launch_hopper};
