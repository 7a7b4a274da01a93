// SPDX-License-Identifier: MIT
// The cost of finding a kernel: lookups over a made-up table of 10,000 instances and over this library's own, and the fixed cost
// of a call (every check, the lookup, and launching no work). Prints name, nanoseconds and reach per line; tools/bench/dispatch.py
// builds it into a library and shows the result.
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <algorithm>
#include <vector>

#include "kernels/runtime/library.h"
#include "tilekiln/tilekiln.h"

using namespace tilekiln;

namespace {

// The processor time of this thread: other work on the machine hardly shows in it.
double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

uint32_t random_state = 1;
uint32_t pick(uint32_t below) {
  random_state = random_state * 1664525u + 1013904223u;
  return static_cast<uint32_t>((uint64_t(random_state) * below) >> 32);
}

// The median of many runs of `count` calls, per call.
template <class Call>
double nanoseconds(int count, Call&& call) {
  std::vector<double> times;
  for (int run = 0; run < 101; ++run) {
    const double start = now();
    for (int i = 0; i < count; ++i) call(i);
    times.push_back((now() - start) / count);
  }
  std::nth_element(times.begin(), times.begin() + 50, times.end());
  return times[50];
}

// Problems in random order over all instances of a family: what the branch predictor and the caches cannot learn.
double lookup(const Dispatcher& dispatcher) {
  const Family& family = dispatcher.family();
  const uint32_t refs = family.groups[family.group_count - 1].end;
  std::vector<Query> queries;
  while (queries.size() < 16384) {
    const Row& row = dispatcher.row(pick(refs));
    if (!dispatcher.machine().use(row).usable) continue;
    const int shorter = static_cast<int>(pick(8));
    Query query = {row.codes};
    for (int axis = 0; axis < dispatcher.integer_count(); ++axis)
      query.wants[axis] = dispatcher.integer(row, axis) - shorter;
    query.sizes[0] = 1 + pick(4096);
    queries.push_back(query);
  }
  int64_t missing = 0;
  const double result = nanoseconds(static_cast<int>(queries.size()), [&](int i) {
    missing += dispatcher.find(queries[static_cast<size_t>(i)]).row == nullptr;
  });
  if (missing != 0) fprintf(stderr, "%lld lookups found nothing\n", static_cast<long long>(missing));
  return result;
}

// Rows as the generator would write them: 4 targets x 8 head dims x 313 features, rows spread over units of 64.
double made_up(int* instances) {
  static const Axis axes[] = {{"features", 1, 0, 16, 0, false, nullptr, nullptr},
                              {"hdim_q", 2, 0, 10, 0, false, nullptr, nullptr},
                              {"hdim_v", 2, 10, 10, 0, false, nullptr, nullptr}};
  static const int engine = 0;
  static const void* const pipelines[] = {&engine};
  static const void* const* const engines[] = {pipelines};
  static const auto here = [] { return true; };
  static const uint32_t tile[] = {64, 64};
  static const Fit fits[] = {{0, 0}};
  static const Algorithm algorithm = {"tile", 0, 0, tile, {"", nullptr, 0}, {"", nullptr, 0}};
  static const Algorithms hows[] = {{&algorithm, 1}};
  static const Target targets[] = {{"a", "a", 0, 0, here, engines, hows},
                                   {"b", "b", 1, 10, here, engines, hows},
                                   {"c", "c", 2, 20, here, engines, hows},
                                   {"d", "d", 3, 30, here, engines, hows}};
  constexpr int features = 313, hdims = 8, count = features * hdims * 4;
  std::vector<Row> rows;
  for (uint64_t f = 0; f < features; ++f) {
    for (uint64_t h = 1; h <= hdims; ++h) {
      for (unsigned char t = 0; t < 4; ++t) rows.push_back({f * 3, h * 32 | h * 32 << 10, 0, t});
    }
  }
  // Units hold the rows of one target and head dim, so neighbours in a group lie apart.
  std::vector<uint32_t> where(count);
  std::vector<Row> stored;
  for (uint32_t part = 0; part < hdims * 4; ++part) {
    for (uint32_t f = 0; f < features; ++f) {
      where[f * hdims * 4 + part] = static_cast<uint32_t>(stored.size());
      stored.push_back(rows[f * hdims * 4 + part]);
    }
  }
  std::vector<RowSource> sources;
  for (uint32_t i = 0; i < count; i += 64) sources.push_back({&stored[i], std::min<uint32_t>(64, count - i)});
  std::vector<RowRef> plan;
  std::vector<uint32_t> instance_of;
  std::vector<Group> groups;
  for (uint32_t i = 0; i < count; ++i) {
    plan.push_back({where[i] / 64, where[i] % 64});
    instance_of.push_back(i);
  }
  for (uint32_t f = 0; f < features; ++f) groups.push_back({uint64_t(f) * 3, f * hdims * 4, (f + 1) * hdims * 4});
  Family family = {};
  family.name = "made_up";
  family.axes = axes;
  family.axis_count = 3;
  family.groups = groups.data();
  family.group_count = features;
  family.fits = fits;
  family.fit_count = 1;
  family.instance_of = instance_of.data();
  Table table = {};
  table.targets = targets;
  table.target_count = 4;
  table.sources = sources.data();
  table.families = &family;
  table.plan = plan.data();
  table.instance_count = count;
  *instances = count;
  return lookup(Dispatcher(table, 0, Machine(table, "")));
}

tilekiln_tensor tensor(std::vector<char>& memory, size_t offset, int32_t dtype, std::vector<int64_t> shape) {
  tilekiln_tensor t = {};
  t.data = memory.data() + offset;
  t.dtype = dtype;
  t.ndim = static_cast<int32_t>(shape.size());
  t.device_type = TILEKILN_CPU;
  int64_t stride = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    t.shape[i] = shape[static_cast<size_t>(i)];
    t.stride[i] = stride;
    stride *= t.shape[i];
  }
  return t;
}

// A causal bf16 call with LSE whose sequences are all empty, so that nothing is left but what every call pays.
double call_of_nothing() {
  std::vector<char> memory(5 << 20);
  const int64_t B = 2, S = 128, H = 8, D = 128;
  const tilekiln_tensor q = tensor(memory, 0, TILEKILN_BF16, {B, S, H, D}),
                        k = tensor(memory, 1 << 20, TILEKILN_BF16, {B, S, H, D});
  const tilekiln_tensor v = tensor(memory, 2 << 20, TILEKILN_BF16, {B, S, H, D}),
                        out = tensor(memory, 3 << 20, TILEKILN_BF16, {B, S, H, D});
  const tilekiln_tensor lse = tensor(memory, 4 << 20, TILEKILN_FP32, {B, H, S});
  int32_t zero[] = {0, 0};
  tilekiln_tensor lengths = tensor(memory, 0, TILEKILN_INT32, {B});
  lengths.data = zero;
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = &q, args.k = &k, args.v = &v, args.out = &out, args.lse = &lse, args.seqlen_q = &lengths;
  args.causal = 1;
  int failed = 0;
  const double result = nanoseconds(4096, [&](int) { failed += tilekiln_fmha_fwd(&args) != TILEKILN_OK; });
  if (failed != 0) fprintf(stderr, "%s\n", tilekiln_last_error());
  return failed != 0 ? -1 : result;
}

}  // namespace

int main() {
  int instances = 0;
  const double synthetic = made_up(&instances);
  printf("lookup, made-up table of %d instances|%.1f|100\n", instances, synthetic);
  printf("lookup, %s of %lld instances on %s|%.1f|100\n", tilekiln_receipt(),
         static_cast<long long>(tilekiln_instance_count()), tilekiln_isa(), lookup(dispatcher(0)));
  printf("a call: checks, lookup, no work|%.1f|300\n", call_of_nothing());
  return 0;
}
