// SPDX-License-Identifier: MIT
// The units of a call, seen by an engine that writes them down: every tile of every head once, offsets as the strides and the index
// arrays say, skipped sequences left out, the longest visible ranges first, on one thread and on several.
#include <math.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "check.h"
#include "kernels/attention/fmha_fwd/call.h"
#include "kernels/generated/operators/fmha_fwd.h"
#include "kernels/runtime/launch.h"
#include "tensor.h"

using namespace tilekiln;
using namespace tilekiln::fmha;

const Table tilekiln::table = {};  // no target but the CPU's

namespace {

constexpr int tile_q = 64;
std::mutex mutex;
std::vector<FwdUnit> seen;

void write_down(const FwdProblem&, const FwdUnit& unit, void* scratch) {
  static_cast<char*>(scratch)[99] = 1;
  std::lock_guard lock(mutex);
  CHECK(reinterpret_cast<uint64_t>(scratch) % 64 == 0);
  seen.push_back(unit);
}
const FwdEngine engine = {{write_down, write_down, write_down, write_down, write_down}, 100, tile_q, 64};
const uint32_t fields[] = {tile_q, 64};
const Algorithm how = {"qlanes_b64x64", 0, 0, fields, {"", nullptr, 0}, {"", nullptr, 0}};
const Row row = {0, 0, 0, 0};

// Data that is never touched: the engine only writes units down.
char* const fake = reinterpret_cast<char*>(uint64_t(1) << 40);

std::vector<FwdUnit> units_of(const tilekiln_fmha_fwd_args& args) {
  seen.clear();
  FwdCall call;
  if (!CHECK(op::fmha_fwd::check(args, &call) == TILEKILN_OK)) fprintf(stderr, "%s\n", error_text());
  call.choice = {&row, &engine, 0, &how};
  CHECK(launch(call) == TILEKILN_OK);
  return seen;
}

using Key = std::tuple<int, int, int>;  // batch, head, row
std::map<Key, FwdUnit> by_key(const std::vector<FwdUnit>& units) {
  std::map<Key, FwdUnit> result;
  for (const FwdUnit& unit : units) CHECK(result.emplace(Key{unit.batch, unit.head, unit.row}, unit).second);
  return result;
}

void batch_mode() {
  constexpr int B = 3, Sq = 200, Sk = 300, Hq = 4, Hk = 2, D = 64;
  auto q = tensor(fake, TILEKILN_FP32, {B, Hq, Sq, D}), k = tensor(fake + (1 << 28), TILEKILN_FP32, {B, Hk, Sk, D});
  auto v = tensor(fake + (2 << 28), TILEKILN_FP32, {B, Hk, Sk, D}),
       out = tensor(fake + (3 << 28), TILEKILN_FP32, {B, Hq, Sq, D});
  auto lse = tensor(fake + (4l << 28), TILEKILN_FP32, {B, Hq, Sq}),
       bias = tensor(fake + (5l << 28), TILEKILN_FP32, {1, Hq, Sq, Sk});
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = &q, args.k = &k, args.v = &v, args.out = &out, args.lse = &lse, args.bias = &bias;
  args.layout = TILEKILN_BHSD;
  for (int causal : {0, 1}) {
    for (int threads : {1, 3}) {
      args.causal = causal;
      args.num_threads = threads;
      const std::vector<FwdUnit> units = units_of(args);
      const auto keyed = by_key(units);
      CHECK(keyed.size() == B * Hq * 4);
      for (const auto& [key, unit] : keyed) {
        CHECK(unit.row % tile_q == 0 && unit.row < Sq && unit.seqlen_q == Sq && unit.seqlen_k == Sk);
        CHECK(unit.q_offset == unit.batch * q.stride[0] && unit.k_offset == unit.batch * k.stride[0]);
        CHECK(unit.v_offset == unit.batch * v.stride[0] && unit.out_offset == unit.batch * out.stride[0]);
        CHECK(unit.lse_offset == unit.batch * lse.stride[0] && unit.bias_offset == 0);
      }
      if (threads > 1) continue;
      for (size_t i = 1; i < units.size(); ++i) {
        if (units[i].head != units[i - 1].head) continue;
        CHECK(causal ? units[i].row < units[i - 1].row
                     : units[i].row > units[i - 1].row);  // causal: the last rows see most keys
      }
    }
  }
  // A window to the right only: the first rows see most keys.
  args.causal = 0;
  args.window_left = 0;
  args.num_threads = 1;
  CHECK(units_of(args)[0].row == 0);

  // Batch mode skips short sequences too: all of them, when none has lengths of its own.
  args.min_seqlen_q = Sq;
  CHECK(units_of(args).empty());
  args.min_seqlen_q = Sq - 1;
  CHECK(units_of(args).size() == B * Hq * 4);
  args.min_seqlen_q = 0;

  // Padded rows: logical lengths, and those without work left out.
  int32_t lengths_q[] = {200, 0, 65}, lengths_k[] = {300, 300, 7};
  auto length_q = tensor(lengths_q, TILEKILN_INT32, {B}), length_k = tensor(lengths_k, TILEKILN_INT32, {B});
  args.seqlen_q = &length_q, args.seqlen_k = &length_k;
  const auto keyed = by_key(units_of(args));
  CHECK(keyed.size() == (4 + 0 + 2) * Hq);
  for (const auto& [key, unit] : keyed) {
    CHECK(unit.seqlen_q == lengths_q[unit.batch] && unit.seqlen_k == lengths_k[unit.batch]);
    CHECK(unit.q_offset == unit.batch * q.stride[0] && unit.k_offset == unit.batch * k.stride[0]);
  }
}

void group_mode() {
  constexpr int total = 1000, Hq = 6, Hk = 3, D = 32;
  auto q = tensor(fake, TILEKILN_FP8, {total, Hq, D}), k = tensor(fake + (1 << 28), TILEKILN_FP8, {total, Hk, D});
  auto v = tensor(fake + (2 << 28), TILEKILN_FP8, {total, Hk, D}),
       out = tensor(fake + (3 << 28), TILEKILN_BF16, {total, Hq, D});
  auto randval = tensor(fake + (4l << 28), TILEKILN_UINT8, {Hq, total, 500});
  auto slopes = tensor(fake + (5l << 28), TILEKILN_FP32, {4, Hq});
  std::vector<float> scales(1000, 1);
  auto q_scale = tensor(scales.data(), TILEKILN_FP32, {Hq, 12}),
       k_scale = tensor(scales.data(), TILEKILN_FP32, {Hk, 11});
  int32_t start_q[] = {0, 300, 310, 700, 1000}, start_k[] = {10, 510, 520, 600, 990}, length_q[] = {290, 10, 64, 300},
          cu_k[] = {0, 500, 505, 505, 805};
  int32_t first_q[] = {0, 3, 4, 6, 12}, first_k[] = {0, 4, 5, 5, 11};
  auto starts_q = tensor(start_q, TILEKILN_INT32, {5}), starts_k = tensor(start_k, TILEKILN_INT32, {5}),
       lengths_q = tensor(length_q, TILEKILN_INT32, {4});
  auto cu_lengths_k = tensor(cu_k, TILEKILN_INT32, {5}), firsts_q = tensor(first_q, TILEKILN_INT32, {5}),
       firsts_k = tensor(first_k, TILEKILN_INT32, {5});
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = &q, args.k = &k, args.v = &v, args.out = &out, args.randval = &randval, args.alibi_slopes = &slopes;
  args.q_descale = &q_scale, args.k_descale = &k_scale, args.v_descale = &k_scale;
  args.block_scale_seqstart_q = &firsts_q, args.block_scale_seqstart_k = &firsts_k;
  args.seqstart_q = &starts_q, args.seqstart_k = &starts_k, args.seqlen_q = &lengths_q,
  args.cu_seqlens_k = &cu_lengths_k;
  args.dropout_p = 0.25f;
  args.min_seqlen_q = 10;
  args.num_threads = 1;
  const std::vector<FwdUnit> units = units_of(args);
  const auto keyed = by_key(units);
  CHECK(keyed.size() == (5 + 0 + 1 + 5) * Hq);
  for (const auto& [key, unit] : keyed) {
    const int b = unit.batch;
    CHECK(b != 1);  // 10 queries are not more than min_seqlen_q
    CHECK(unit.seqlen_q == length_q[b] && unit.seqlen_k == cu_k[b + 1] - cu_k[b]);
    CHECK(unit.q_offset == start_q[b] * q.stride[0] && unit.out_offset == start_q[b] * out.stride[0]);
    CHECK(unit.k_offset == start_k[b] * k.stride[0] && unit.v_offset == start_k[b] * v.stride[0]);
    CHECK(unit.randval_offset == start_q[b] * 500 && unit.alibi_offset == b * Hq);
    CHECK(unit.q_descale_offset == first_q[b] && unit.k_descale_offset == first_k[b] &&
          unit.v_descale_offset == first_k[b]);
  }
  for (size_t i = 1; i < units.size(); ++i) CHECK(units[i - 1].seqlen_k >= units[i].seqlen_k);

  first_k[1] = 3;  // 500 keys need 4 blocks
  FwdCall call;
  CHECK(op::fmha_fwd::check(args, &call) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(error_text(), "block_scale_seqstart_k: sequence 0 had 3 blocks, must have 4: one per 128 of its 500");
  first_k[1] = 4;
  first_k[4] = 12;
  FwdCall beyond;
  CHECK(op::fmha_fwd::check(args, &beyond) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(error_text(),
             "block_scale_seqstart_k: ended at 12, must end at 11 or before, the blocks of its descale array");
}

void many_sequences() {
  // More sequences than are kept in place, on several threads; every unit once.
  constexpr int B = 1000, Hq = 2, D = 32;
  std::vector<int32_t> cu(B + 1);
  for (int i = 0; i < B; ++i) cu[i + 1] = cu[i] + (i * 37) % 150;
  const int64_t total = cu[B];
  auto q = tensor(fake, TILEKILN_BF16, {total, Hq, D}), k = tensor(fake + (1 << 28), TILEKILN_BF16, {total, Hq, D});
  auto v = tensor(fake + (2 << 28), TILEKILN_BF16, {total, Hq, D}),
       out = tensor(fake + (3 << 28), TILEKILN_BF16, {total, Hq, D});
  auto starts = tensor(cu.data(), TILEKILN_INT32, {B + 1});
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = &q, args.k = &k, args.v = &v, args.out = &out, args.cu_seqlens_q = &starts, args.cu_seqlens_k = &starts;
  args.causal = 1;
  size_t expected = 0;
  for (int i = 0; i < B; ++i) expected += static_cast<size_t>((cu[i + 1] - cu[i] + tile_q - 1) / tile_q) * Hq;
  for (int threads : {1, 4}) {
    args.num_threads = threads;
    CHECK(by_key(units_of(args)).size() == expected);
  }
}

struct HostCall : Run {};

void engines_of_another_type() {
  // Backend with kernels of its own, whose engines nothing of the host's may read.
  static const Backend kernels = {.name = "kernels", .takes_units = false},
                       paper = {.name = "paper", .takes_units = true};
  HostCall call;
  CHECK(check_engines(call, "softmax") == TILEKILN_OK);
  call.backend = &paper;
  CHECK(check_engines(call, "softmax") == TILEKILN_OK);
  call.backend = &kernels;
  CHECK(check_engines(call, "softmax") == TILEKILN_INTERNAL);
  CHECK(strcmp(error_text(), "the host code of softmax launches no kernels, and kernels has nothing else") == 0);
  FwdCall launches;
  launches.backend = &kernels;
  CHECK(check_engines(launches, "fmha_fwd") == TILEKILN_OK);
}

}  // namespace

int main() {
  engines_of_another_type();
  batch_mode();
  group_mode();
  many_sequences();
  return check_result();
}
