// SPDX-License-Identifier: MIT
// The workspace of the backward pass: every vector byte for byte, the worked examples, and tens of thousands of random
// schedules by brute force.
#include "kernels/attention/fmha_bwd/workspace.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "check.h"

using namespace tilekiln::fmha;

namespace {

struct GroupVector {
  const char* name;
  int nhead, hdim, kM0, kN0, workers;
  std::vector<int> sq, sk, nsplits;
  std::vector<long long> offsets;
  unsigned long long device, bound, raw, host, cu_state, batch_state;
  std::vector<int> sq_w, nc;
  int unowned;
  std::vector<std::vector<int>> logical;  // w_lo, w_hi, ibatch, isplit, head_start, c_start
  std::vector<int> map;                   // empty: every state is the same
};
const GroupVector group_vectors[] = {
#include "bwd_group_vectors.inc"
};

struct BatchVector {
  int batch, nhead, seqlen_k, kN0, workers;
  long long per_head, total, per_worker;
  int nsplits;
};
const BatchVector batch_vectors[] = {
#include "bwd_batch_vectors.inc"
};

// A failed check says nothing of the case by itself.
void check_case(bool held, const std::string& name, const char* what, int line) {
  check_that(held, (name + ": " + what).c_str(), __FILE__, line);
}
#define CHECK_IN(condition) check_case((condition), name, #condition, __LINE__)

std::vector<int32_t> starts_of(const std::vector<int>& lengths) {
  std::vector<int32_t> starts(1, 0);
  for (int length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

struct Segment {
  explicit Segment(uint64_t bytes) : states(bytes / sizeof(CuState) + 1) {
    memset(states.data(), 0xa5, states.size() * sizeof(CuState));
  }
  char* data() { return reinterpret_cast<char*>(states.data()); }
  std::vector<CuState> states;  // for their alignment
};

BwdWorkspaceShape group_shape(const GroupVector& v) {
  BwdWorkspaceShape shape;
  shape.group = shape.deterministic = true;
  shape.batch = static_cast<int>(v.sq.size());
  shape.nhead_q = v.nhead;
  shape.hdim_q = v.hdim;
  shape.tile_q = v.kM0;
  shape.tile_k = v.kN0;
  shape.workers = v.workers;
  return shape;
}

// The jobs of a schedule, worker by worker. Each (batch, head, chunk) must come once, no slot be of two workers or at
// or past nsplits.
struct Walked {
  std::map<std::tuple<int, int, int>, int> jobs;   // (batch, head, chunk) -> times
  std::map<std::tuple<int, int, int>, int> owner;  // (batch, head, slot) -> worker
  bool shared = false;
  int highest_beyond = 0;
  void job(int worker, int batch, int head, int chunk, int slot, int nsplits) {
    ++jobs[{batch, head, chunk}];
    if (slot < 0 || slot >= nsplits) ++highest_beyond;
    const auto [at, fresh] = owner.try_emplace({batch, head, slot}, worker);
    shared = shared || (!fresh && at->second != worker);
  }
  bool each_once(size_t expected) const {
    return jobs.size() == expected &&
           std::all_of(jobs.begin(), jobs.end(), [](const auto& entry) { return entry.second == 1; });
  }
};

Walked walk(const BwdWorkspaceShape& shape, const GroupSchedule& schedule) {
  Walked walked;
  for (int worker = 0; worker < shape.workers; ++worker) {
    walk_group(
        schedule.cu_states[worker], schedule.batch_states, shape.batch, shape.nhead_q,
        [&](int b, int head, int chunk, int slot) { walked.job(worker, b, head, chunk, slot, schedule.nsplits[b]); });
  }
  return walked;
}

void vectors_of_group_mode() {
  for (const GroupVector& v : group_vectors) {
    const std::string name = v.name;
    const BwdWorkspaceShape shape = group_shape(v);
    const BwdWorkspaceLayout layout = layout_of(shape);
    CHECK_IN(layout.nsplits == 0 && layout.offsets == (4 * v.sq.size() + 15) / 16 * 16);
    CHECK_IN(layout.cu_state == v.cu_state && layout.batch_state == v.batch_state);
    CHECK_IN(layout.raw == v.raw && layout.host == v.host);
    const auto q = starts_of(v.sq), k = starts_of(v.sk);
    CHECK_IN(dq_acc_upper_bound(shape, q.back(), *std::max_element(v.sk.begin(), v.sk.end())) == v.bound);

    Segment segment(layout.host), expected(layout.host);
    CHECK_IN(pack(shape, q.data(), k.data(), segment.data()) == v.device);
    char* const bytes = expected.data();
    memset(bytes, 0, layout.host);
    memcpy(bytes, v.nsplits.data(), 4 * v.nsplits.size());
    memcpy(bytes + (4 * v.sq.size() + 15) / 16 * 16, v.offsets.data(), 8 * v.offsets.size());
    for (int block = 0; block < v.workers; ++block) {
      const auto& state = v.logical[static_cast<size_t>(v.map.empty() ? block : v.map[static_cast<size_t>(block)])];
      memcpy(bytes + v.cu_state + 32 * static_cast<unsigned long long>(block), state.data(), 24);
      if (!v.map.empty()) CHECK_IN(xcd_map(block, v.workers) == v.map[static_cast<size_t>(block)]);
    }
    for (size_t b = 0; b < v.sq.size(); ++b) {
      const int32_t state[] = {v.sq_w[b], v.nc[b], v.nsplits[b]};
      memcpy(bytes + v.batch_state + 16 * b, state, sizeof(state));
    }
    CHECK_IN(memcmp(segment.data(), bytes, layout.host) == 0);

    const GroupSchedule schedule = schedule_in(layout, segment.data());
    const Walked walked = walk(shape, schedule);
    size_t slots = 0, owned = 0;  // those that hold a row
    for (size_t b = 0; b < v.sq.size(); ++b) slots += v.sq[b] == 0 ? 0 : static_cast<size_t>(v.nsplits[b] * v.nhead);
    for (const auto& entry : walked.owner) owned += v.sq[static_cast<size_t>(std::get<0>(entry.first))] != 0;
    if (!v.map.empty()) CHECK_IN(slots - owned == static_cast<size_t>(v.unowned));
  }
}

void vectors_of_batch_mode() {
  for (const BatchVector& v : batch_vectors) {
    const std::string name = "batch " + std::to_string(&v - batch_vectors);
    BwdWorkspaceShape shape;
    shape.deterministic = true;
    shape.batch = v.batch;
    shape.nhead_q = v.nhead;
    shape.seqlen_k = v.seqlen_k;
    shape.tile_k = v.kN0;
    shape.workers = v.workers;
    const BatchJobs jobs = batch_jobs(shape);
    CHECK_IN(jobs.per_head == v.per_head && jobs.total == v.total && jobs.per_worker == v.per_worker &&
             jobs.nsplits == v.nsplits);
  }
}

// facts 3.7
void worked_batch_examples() {
  BwdWorkspaceShape a;
  a.deterministic = true;
  a.batch = 2;
  a.nhead_q = 16;
  a.hdim_q = 128;
  a.tile_q = 16;
  a.tile_k = 128;
  a.workers = 304;
  a.seqlen_q = 1024;
  a.seqlen_k = 4096;
  const BwdWorkspaceLayout layout = layout_of(a);
  CHECK(layout.raw == 16 && layout.host == 4096 && layout.nsplits == 0 && layout.cu_state == absent);
  Segment segment(layout.host);
  CHECK(pack(a, nullptr, nullptr, segment.data()) == 134217728);
  CHECK(reinterpret_cast<int32_t*>(segment.data())[0] == 8);
  CHECK(dq_acc_upper_bound(a, 2048, 4096) == 134217728);
  CHECK(zeroed_by_prepare(a) && !zeroed_by_stage(a));

  BwdWorkspaceShape b = a;
  b.batch = 1;
  b.nhead_q = 5;
  b.hdim_q = 64;
  b.workers = 16;
  b.seqlen_q = 512;
  b.seqlen_k = 1000;
  CHECK(pack(b, nullptr, nullptr, segment.data()) == 2621440);
  const BatchJobs jobs = batch_jobs(b);
  CHECK(jobs.nsplits == 4);
  using Slot = std::tuple<int, int, int, int>;  // worker, head, chunk, slot
  std::vector<Slot> slots;
  for (int w = 0; w < b.workers; ++w)
    walk_batch(b, jobs, w, false, [&](int, int head, int chunk, int slot) { slots.push_back({w, head, chunk, slot}); });
  const std::vector<Slot> expected = {
      {0, 0, 0, 0},  {0, 0, 1, 0},  {0, 0, 2, 0},  {1, 0, 3, 1},  {1, 0, 4, 1},  {1, 0, 5, 1},  {2, 0, 6, 2},
      {2, 0, 7, 2},  {2, 1, 0, 0},  {3, 1, 1, 1},  {3, 1, 2, 1},  {3, 1, 3, 1},  {4, 1, 4, 2},  {4, 1, 5, 2},
      {4, 1, 6, 2},  {5, 1, 7, 3},  {5, 2, 0, 0},  {5, 2, 1, 0},  {6, 2, 2, 1},  {6, 2, 3, 1},  {6, 2, 4, 1},
      {7, 2, 5, 2},  {7, 2, 6, 2},  {7, 2, 7, 2},  {8, 3, 0, 0},  {8, 3, 1, 0},  {8, 3, 2, 0},  {9, 3, 3, 1},
      {9, 3, 4, 1},  {9, 3, 5, 1},  {10, 3, 6, 2}, {10, 3, 7, 2}, {10, 4, 0, 0}, {11, 4, 1, 1}, {11, 4, 2, 1},
      {11, 4, 3, 1}, {12, 4, 4, 2}, {12, 4, 5, 2}, {12, 4, 6, 2}, {13, 4, 7, 3}};
  CHECK(slots == expected);

  BwdWorkspaceShape c = b;
  c.batch = 3;
  c.nhead_q = 4;
  c.seqlen_k = 100;
  c.workers = 80;
  CHECK(batch_jobs(c).nsplits == 1 && batch_jobs(c).per_worker == 1);

  const int order[] = {0, 5, 1, 4, 2, 3};
  for (int x = 0; x < 6; ++x) CHECK(interleaved(x, 6) == order[x]);
}

// The walk of facts 3.8, worker by worker; the figures of 3.8, 3.9 and of the 490,733,568-byte case are among the
// vectors.
void worked_group_example() {
  const GroupVector& v = group_vectors[0];
  CHECK_TEXT(v.name, "B_small");
  const BwdWorkspaceShape shape = group_shape(v);
  const BwdWorkspaceLayout layout = layout_of(shape);
  Segment segment(layout.host);
  const auto q = starts_of(v.sq), k = starts_of(v.sk);
  CHECK(pack(shape, q.data(), k.data(), segment.data()) == 121344);
  using Job = std::tuple<int, int, int, int, int>;  // worker, batch, head, chunk, slot
  std::vector<Job> jobs;
  const GroupSchedule schedule = schedule_in(layout, segment.data());
  for (int w = 0; w < 4; ++w) {
    walk_group(schedule.cu_states[w], schedule.batch_states, 3, 2,
               [&](int b, int head, int chunk, int slot) { jobs.push_back({w, b, head, chunk, slot}); });
  }
  const std::vector<Job> expected = {{0, 0, 0, 0, 0}, {0, 0, 0, 1, 0}, {0, 0, 0, 2, 0}, {1, 0, 0, 3, 1},
                                     {1, 0, 1, 0, 0}, {1, 0, 1, 1, 0}, {2, 0, 1, 2, 1}, {2, 0, 1, 3, 1},
                                     {2, 1, 0, 0, 0}, {3, 1, 1, 0, 0}, {3, 2, 0, 0, 0}, {3, 2, 0, 1, 0},
                                     {3, 2, 0, 2, 0}, {3, 2, 1, 0, 0}, {3, 2, 1, 1, 0}, {3, 2, 1, 2, 0}};
  CHECK(jobs == expected);

  const GroupVector& seed = group_vectors[2];
  CHECK_TEXT(seed.name, "D_seed_varlen");
  CHECK(seed.device == 490733568 && seed.bound == 1342177280 && seed.host == 12288);
}

void sizes_of_the_other_modes() {
  BwdWorkspaceShape shape;
  shape.batch = 3;
  shape.nhead_q = 4;
  shape.hdim_q = 64;
  shape.tile_q = shape.tile_k = 64;
  shape.workers = 8;
  shape.seqlen_q = 100;
  shape.seqlen_k = 200;
  const BwdWorkspaceLayout layout = layout_of(shape);
  CHECK(layout.host == 4096 && layout.raw == 16 && layout.offsets == absent && layout.batch_state == absent);
  Segment segment(layout.host);
  CHECK(pack(shape, nullptr, nullptr, segment.data()) == 4 * 3 * 4 * 100 * 64);
  CHECK(zeroed_by_prepare(shape));
  shape.group = true;
  const int32_t q[] = {0, 10, 10, 77}, k[] = {0, 5, 9, 9};
  CHECK(pack(shape, q, k, segment.data()) == 4 * 4 * 77 * 64);
  CHECK(dq_acc_upper_bound(shape, 77, 5) == 4 * 4 * 77 * 64);
  CHECK(zeroed_by_prepare(shape) && !zeroed_by_stage(shape));
  shape.deterministic = true;
  CHECK(!zeroed_by_prepare(shape) && zeroed_by_stage(shape));
}

void random_group_schedules(int count) {
  std::mt19937 random(3);
  const auto pick = [&](std::initializer_list<int> of) { return of.begin()[random() % of.size()]; };
  int bad = 0, unowned = 0;
  for (int i = 0; i < count && bad < 5; ++i) {
    GroupVector v = {};
    const std::string name = "random group schedule " + std::to_string(i);
    v.nhead = 1 + static_cast<int>(random() % 9);
    v.hdim = 32;
    v.kM0 = pick({16, 32, 64});
    v.kN0 = pick({16, 64, 128, 192});
    v.workers = 1 + static_cast<int>(random() % 304);
    const size_t batch = 1 + random() % 6;
    const int longest = pick({1, 40, 300, 1500});
    for (size_t b = 0; b < batch; ++b) {
      v.sq.push_back(random() % 5 == 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(longest + 1)));
      v.sk.push_back(random() % 5 == 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(longest + 1)));
    }
    const BwdWorkspaceShape shape = group_shape(v);
    const BwdWorkspaceLayout layout = layout_of(shape);
    Segment segment(layout.host);
    const auto q = starts_of(v.sq), k = starts_of(v.sk);
    const uint64_t bytes = pack(shape, q.data(), k.data(), segment.data());
    const GroupSchedule schedule = schedule_in(layout, segment.data());
    const Walked walked = walk(shape, schedule);
    size_t expected = 0, slots = 0;
    uint64_t elements = 0;
    bool offsets = true;
    for (size_t b = 0; b < batch; ++b) {
      expected += static_cast<size_t>((v.sk[b] + v.kN0 - 1) / v.kN0 * v.nhead);
      slots += static_cast<size_t>(schedule.nsplits[b] * v.nhead);
      offsets = offsets && schedule.offsets[b] == static_cast<int64_t>(elements) &&
                schedule.nsplits[b] == schedule.batch_states[b].nsplits;
      if (k.back() != 0) elements += static_cast<uint64_t>(v.nhead * schedule.nsplits[b] * v.sq[b] * v.hdim);
    }
    unowned += slots > walked.owner.size();
    const bool good = walked.each_once(expected) && !walked.shared && walked.highest_beyond == 0 && offsets &&
                      bytes == 4 * elements &&
                      bytes <= dq_acc_upper_bound(shape, q.back(), *std::max_element(v.sk.begin(), v.sk.end()));
    CHECK_IN(good);
    bad += !good;
  }
  CHECK(unowned > count / 10);  // so the cases are of the kind that needs the zeroing stage
}

void random_batch_schedules(int count) {
  std::mt19937 random(4);
  int bad = 0;
  for (int i = 0; i < count && bad < 5; ++i) {
    const std::string name = "random batch schedule " + std::to_string(i);
    BwdWorkspaceShape shape;
    shape.deterministic = true;
    shape.batch = 1 + static_cast<int>(random() % 4);
    shape.nhead_q = 1 + static_cast<int>(random() % 9);
    shape.hdim_q = 32;
    shape.tile_q = 64;
    shape.tile_k = 1 << (4 + random() % 4);
    shape.workers = 1 + static_cast<int>(random() % 304);
    shape.seqlen_q = static_cast<int64_t>(random() % 100);
    shape.seqlen_k = static_cast<int64_t>(random() % 1500);
    const bool masked = random() % 2 == 0;
    const BatchJobs jobs = batch_jobs(shape);
    Walked walked;
    for (int w = 0; w < shape.workers; ++w) {
      walk_batch(shape, jobs, w, masked,
                 [&](int b, int head, int chunk, int slot) { walked.job(w, b, head, chunk, slot, jobs.nsplits); });
    }
    Segment segment(layout_of(shape).host);
    const bool good = walked.each_once(static_cast<size_t>(jobs.total)) && !walked.shared &&
                      walked.highest_beyond == 0 &&
                      pack(shape, nullptr, nullptr, segment.data()) <=
                          dq_acc_upper_bound(shape, shape.batch * shape.seqlen_q, shape.seqlen_k);
    CHECK_IN(good);
    bad += !good;
  }
}

// More work than 32 bits count: 48 sequences of 131072 with 128 heads and more.
void work_beyond_32_bits() {
  const std::string name = "long";
  GroupVector v = {};
  v.nhead = 128;
  v.hdim = 128;
  v.kM0 = v.kN0 = 64;
  v.workers = 256;
  for (int b = 0; b < 48; ++b) v.sq.push_back(b == 7 ? 1 : 40000 + b), v.sk.push_back(b == 9 ? 0 : 20000 + 17 * b);
  const BwdWorkspaceShape shape = group_shape(v);
  Segment segment(layout_of(shape).host);
  const auto q = starts_of(v.sq), k = starts_of(v.sk);
  const uint64_t bytes = pack(shape, q.data(), k.data(), segment.data());
  const GroupSchedule schedule = schedule_in(layout_of(shape), segment.data());
  const Walked walked = walk(shape, schedule);
  size_t expected = 0;
  for (int length : v.sk) expected += static_cast<size_t>((length + 63) / 64 * v.nhead);
  CHECK_IN(walked.each_once(expected) && !walked.shared && walked.highest_beyond == 0);
  CHECK_IN(bytes <= dq_acc_upper_bound(shape, q.back(), *std::max_element(v.sk.begin(), v.sk.end())));
}

void remapping() {
  for (int n = 1; n < 400; ++n) {
    std::vector<int> seen(static_cast<size_t>(n), 0);
    bool inside = true;
    for (int b = 0; b < n; ++b) {
      const int logical = xcd_map(b, n);
      inside = inside && logical >= 0 && logical < n;
      if (inside) ++seen[static_cast<size_t>(logical)];
    }
    CHECK(inside && std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
}

}  // namespace

int main() {
  vectors_of_group_mode();
  vectors_of_batch_mode();
  worked_batch_examples();
  worked_group_example();
  sizes_of_the_other_modes();
  random_group_schedules(30000);
  random_batch_schedules(20000);
  work_beyond_32_bits();
  remapping();
  return check_result();
}
