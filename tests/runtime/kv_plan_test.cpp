// SPDX-License-Identifier: MIT
// Plans of both stages of split-KV together: over tables made by hand, with the second stage and without.
#include <string.h>

#include <vector>

#include "check.h"
#include "kernels/attention/kv/call.h"
#include "kernels/generated/fmha_fwd_splitkv.h"
#include "kernels/generated/fmha_fwd_splitkv_combine.h"
#include "kernels/runtime/table.h"

using namespace tilekiln;
using namespace tilekiln::fmha;

namespace {

template <class Signature>
Signature main_signature() {
  Signature s = {};
  s.lse = true;
  return s;
}
// fp32, batch, head dims 64: two pipelines of the first stage, and the second with and without LSE.
constexpr uint64_t hdims = uint64_t(64) | uint64_t(64) << 16, hdim = 64;
const uint64_t first = fmha_fwd_splitkv::pack(main_signature<fmha_fwd_splitkv::Signature>());
const uint64_t second = fmha_fwd_splitkv_combine::pack({}),
               second_lse = fmha_fwd_splitkv_combine::pack(main_signature<fmha_fwd_splitkv_combine::Signature>());
const Row rows[] = {{first, hdims, 0, 0}, {first, hdims, 1, 0}, {second, hdim, 0, 0}, {second_lse, hdim, 0, 0}};
const RowSource sources[] = {{rows, 4}};
const RowRef plan[] = {{0, 0}, {0, 1}, {0, 2}, {0, 3}};
const char* const main_pipelines[] = {"qlanes", "dlanes"};
const char* const second_pipelines[] = {"dlanes"};
const uint32_t dims[] = {0, 64, 64}, second_dims[] = {0, 64};
const Group main_groups[] = {{first, 0, 2}}, second_groups[] = {{second, 0, 1}, {second_lse, 1, 2}};
const uint32_t main_instances[] = {0, 1}, second_instances[] = {2, 3};
const char* const sizes[] = {"seqlen_q"};
const Fit fits[] = {{0, 0}};
const Family families[] = {
    {"fmha_fwd_splitkv",
     fmha_fwd_splitkv::axes,
     11,
     main_pipelines,
     2,
     nullptr,
     0,
     nullptr,
     0,
     {"head dims", 0, dims, 1},
     sizes,
     1,
     fits,
     1,
     main_groups,
     1,
     main_instances,
     0,
     2},
    // Only LSE of the second stage is there: second_groups[0] is left out.
    {"fmha_fwd_splitkv_combine",
     fmha_fwd_splitkv_combine::axes,
     5,
     second_pipelines,
     1,
     nullptr,
     0,
     nullptr,
     0,
     {"head dims", 0, second_dims, 1},
     nullptr,
     0,
     nullptr,
     0,
     second_groups + 1,
     1,
     second_instances,
     2,
     2},
};
const KvEngine engine = {};
const void* const main_engines[] = {&engine, &engine};
const void* const second_engines[] = {&engine};
const void* const* const engines[] = {main_engines, second_engines};
const uint32_t tall[] = {64, 64}, flat[] = {16, 64};
const SizeRange few[] = {{0, 1, 8}};
const SizeClause few_queries[] = {{few, 1}};
constexpr SizeRule always = {"", nullptr, 0};
const Algorithm main_hows[] = {{"qlanes_b64x64", 0, 0, tall, always, always},
                               {"dlanes_b16x64", 1, 1, flat, always, {"seqlen_q>=1 seqlen_q<=8", few_queries, 1}}};
const Algorithm second_hows[] = {{"dlanes_b64", 0, 0, tall, always, always}};
const Algorithms hows[] = {{main_hows, 2}, {second_hows, 1}};
bool yes() { return true; }
const Target targets[] = {{"cpu-generic", "generic", 0, 0, yes, engines, hows}};

}  // namespace

namespace tilekiln {
extern const Table table;
const Table table = {"1.0", "toy", "", targets, 1, sources, 1, families, 2, plan, 4, "", nullptr};
}  // namespace tilekiln

namespace {

const char* const in_order[] = {"fmha_fwd_appendkv", "fmha_fwd_splitkv", "fmha_fwd_splitkv_combine"};
const Stages appended = {in_order, 3}, split = {in_order + 1, 2};

KvCall call_of(bool lse, int64_t seqlen_q) {
  KvCall call;
  call.problem.dtype = KvDtype::fp32;
  call.problem.hdim_q = call.problem.hdim_v = 64;
  call.problem.features.lse = lse;
  call.query.wants[want_hdim_q] = call.query.wants[want_hdim_v] = 64;
  call.query.sizes[size_seqlen_q] = seqlen_q;
  call.query.codes = first;
  call.combine_query = {lse ? second_lse : second, {64}};
  return call;
}

}  // namespace

int main() {
  KvCall whole = call_of(true, 1);
  CHECK(choose_instances(split, -1, whole) == TILEKILN_OK);
  CHECK(whole.choice.instance == 1 && whole.combine.instance == 3 && whole.shares_heads);
  KvCall many = call_of(true, 64);
  CHECK(choose_instances(split, -1, many) == TILEKILN_OK);
  CHECK(many.choice.instance == 0 && many.combine.instance == 3 && !many.shares_heads);
  // The caller's choice is of the main stage.
  CHECK(choose_instances(split, 0, whole) == TILEKILN_OK && whole.choice.instance == 0 && whole.combine.instance == 3);
  CHECK(choose_instances(split, 3, whole) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(
      error_text(),
      "instance: was 3, fmha_fwd_splitkv_combine_fp32_dv64_batch_nqscale_lse_dlanes_b64_cpu_generic, must be one of "
      "fmha_fwd_splitkv");

  int64_t instances[] = {-2, -2, -2};
  list_instances(split, whole, instances);
  CHECK(instances[0] == 0 && instances[1] == 3 && instances[2] == -2);
  AppendCall grown;
  grown.choice.instance = 7;
  list_instances(appended, grown, instances);
  CHECK(instances[0] == 7 && instances[1] == -1 && instances[2] == -1);
  grown.attends = true;
  grown.attention = static_cast<KvCall&&>(whole);
  list_instances(appended, grown, instances);
  CHECK(instances[0] == 7 && instances[1] == 0 && instances[2] == 3);

  // Plans need their second stage: without it there is none, and the error says which is missing.
  KvCall half = call_of(false, 1);
  CHECK(choose_instances(split, -1, half) == TILEKILN_NO_KERNEL);
  CHECK_HOLDS(error_text(),
              "split-KV has its first stage, but not the second: no kernel in library toy for "
              "fmha_fwd_splitkv_combine dtype=fp32 hdim_v=64 mode=batch qscale=none lse=no");
  KvCall other = call_of(true, 1);
  other.query.wants[want_hdim_q] = 65;
  CHECK(choose_instances(split, -1, other) == TILEKILN_NO_KERNEL);
  CHECK(strstr(error_text(), "second") == nullptr);

  AppendCall append;
  CHECK(choose_instances(appended, -1, append) == TILEKILN_NO_KERNEL);
  CHECK_TEXT(error_text(), "library toy holds no instance of fmha_fwd_appendkv");
  return check_result();
}
