// SPDX-License-Identifier: MIT
// The backward launcher: what it plans, that preparing in a stream never waits, that its memory outlives the work, what
// goes wrong.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "bwd_problem.h"
#include "check.h"

using namespace tilekiln::test;

namespace {

BwdSizes group_sizes() {
  BwdSizes sizes;
  sizes.group = true;
  sizes.sq = {100, 0, 37, 300};
  sizes.sk = {200, 64, 130, 700};
  sizes.deterministic = true;
  return sizes;
}

tilekiln_fmha_bwd_problem problem_of(const BwdProblem& p) {
  tilekiln_fmha_bwd_problem problem = tilekiln_fmha_bwd_problem_defaults();
  const BwdSizes& sizes = p.sizes();
  problem.dtype = TILEKILN_FP32;
  problem.hdim_q = sizes.hdim_q;
  problem.hdim_v = sizes.hdim_v;
  problem.nhead_q = sizes.nhead_q;
  problem.nhead_k = sizes.nhead_k;
  problem.group = sizes.group;
  problem.batch = p.batch();
  problem.seqlen_q = sizes.group ? p.seqstart_q.ints.back() : *std::max_element(sizes.sq.begin(), sizes.sq.end());
  problem.seqlen_k = *std::max_element(sizes.sk.begin(), sizes.sk.end());
  problem.mask = sizes.causal;
  problem.deterministic = sizes.deterministic;
  problem.workers = sizes.workers;
  return problem;
}

struct Launcher {
  explicit Launcher(const tilekiln_fmha_bwd_problem& problem) {
    if (!CHECK(tilekiln_fmha_bwd_launcher_create(&problem, &handle) == TILEKILN_OK))
      fprintf(stderr, "%s\n", tilekiln_last_error());
    CHECK(tilekiln_fmha_bwd_launcher_workspace_size(handle, &bytes) == TILEKILN_OK);
    memory.assign(bytes + 64, static_cast<char>(0x7f));
    workspace.data = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
    workspace.dtype = TILEKILN_UINT8;
    workspace.ndim = 1;
    workspace.device_type = TILEKILN_CPU;
    workspace.shape[0] = static_cast<int64_t>(bytes);
    workspace.stride[0] = 1;
  }
  ~Launcher() { CHECK(tilekiln_fmha_bwd_launcher_destroy(handle) == TILEKILN_OK); }
  tilekiln_fmha_bwd_launcher* handle = nullptr;
  uint64_t bytes = 0;
  std::vector<char> memory;
  tilekiln_tensor workspace = {};
};

// A stream that is held until it is let go.
class Held {
 public:
  Held() {
    CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
    CHECK(
        tilekiln_stream_launch_host(stream, [](void* self) { static_cast<Held*>(self)->wait(); }, this) == TILEKILN_OK);
  }
  ~Held() {
    go();
    CHECK(tilekiln_stream_destroy(stream) == TILEKILN_OK);
  }
  void go() {
    std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  bool idle() const {
    int32_t idle = 0;
    CHECK(tilekiln_stream_query(stream, &idle) == TILEKILN_OK);
    return idle != 0;
  }
  tilekiln_stream* stream = nullptr;

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return open_; });
  }
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

// Counts its blocks, and knows from which thread they are released.
struct Allocator {
  std::atomic<int> live = 0, taken = 0;
  std::thread::id releaser;
  tilekiln_staging_allocator view = {sizeof(tilekiln_staging_allocator), take, release, this};
  static void* take(void* self, size_t bytes) {
    auto* own = static_cast<Allocator*>(self);
    ++own->live;
    ++own->taken;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
  }
  static void release(void* self, void* memory, size_t bytes) {
    auto* own = static_cast<Allocator*>(self);
    memset(memory, 0x55, bytes);  // whoever still reads it would go wrong
    free(memory);
    own->releaser = std::this_thread::get_id();
    --own->live;
  }
};

const tilekiln_tensor* starts(const BwdProblem& p, const Tensor& t) { return p.sizes().group ? &t.view : nullptr; }

std::string run_sync(Launcher& launcher, BwdProblem& p) {
  if (tilekiln_fmha_bwd_launcher_prepare(launcher.handle, &launcher.workspace, starts(p, p.seqstart_q),
                                         starts(p, p.seqstart_k)) != TILEKILN_OK) {
    return tilekiln_last_error();
  }
  tilekiln_fmha_bwd_args args = p.args();
  args.workspace = &launcher.workspace;
  args.num_threads = 2;
  if (tilekiln_fmha_bwd_launcher_run(launcher.handle, &args) != TILEKILN_OK) return tilekiln_last_error();
  return p.compare();
}

void every_mode_at_once() {
  for (const bool group : {false, true}) {
    for (const bool deterministic : {false, true}) {
      BwdSizes sizes = group_sizes();
      if (!group) sizes.sq.assign(3, 90), sizes.sk.assign(3, 600);
      sizes.group = group;
      sizes.deterministic = deterministic;
      BwdProblem p(sizes);
      Launcher launcher(problem_of(p));
      int64_t instances[TILEKILN_BWD_STAGES] = {-2, -2, -2};
      CHECK(tilekiln_fmha_bwd_launcher_find(launcher.handle, instances) == TILEKILN_OK);
      for (const int64_t instance : instances) CHECK(tilekiln_instance_name(instance) != nullptr);
      CHECK_TEXT(run_sync(launcher, p).c_str(), "");
      CHECK_TEXT(run_sync(launcher, p).c_str(), "");
      // Once more without a prepare.
      tilekiln_fmha_bwd_args args = p.args();
      args.workspace = &launcher.workspace;
      const bool kept = group && deterministic;
      CHECK(tilekiln_fmha_bwd_launcher_run(launcher.handle, &args) == (kept ? TILEKILN_OK : TILEKILN_INVALID_ARGUMENT));
      if (kept) CHECK_TEXT(p.compare().c_str(), "");
    }
  }
}

// The bits of a launcher's runs are those of the plain call with as many workers.
void same_bits_as_the_plain_call() {
  BwdSizes sizes = group_sizes();
  sizes.workers = 13;
  BwdProblem p(sizes);
  Launcher launcher(problem_of(p));
  CHECK_TEXT(run_sync(launcher, p).c_str(), "");
  const std::vector<float> first = p.gradients();
  tilekiln_fmha_bwd_args args = p.args();
  CHECK(tilekiln_fmha_bwd(&args) == TILEKILN_OK);
  const std::vector<float> second = p.gradients();
  CHECK(memcmp(first.data(), second.data(), first.size() * sizeof(float)) == 0);
}

// Held stream: prepare and run return; the starts are written by earlier work of the stream; the launcher goes before
// the work is done.
void nothing_waits() {
  for (const bool deterministic : {true, false}) {
    BwdSizes sizes = group_sizes();
    sizes.deterministic = deterministic;
    BwdProblem p(sizes);
    Allocator allocator;
    const std::vector<int32_t> q = p.seqstart_q.ints, k = p.seqstart_k.ints;
    std::fill(p.seqstart_q.ints.begin(), p.seqstart_q.ints.end(), -7);
    std::fill(p.seqstart_k.ints.begin(), p.seqstart_k.ints.end(), -7);
    tilekiln_fmha_bwd_problem problem = problem_of(p);
    problem.seqlen_q = q.back();
    auto launcher = std::make_unique<Launcher>(problem);
    std::vector<char> memory = std::move(launcher->memory);
    tilekiln_tensor workspace = launcher->workspace;
    Held held;
    struct Fill {
      BwdProblem* p;
      const std::vector<int32_t>*q, *k;
    } fill = {&p, &q, &k};
    CHECK(tilekiln_stream_launch_host(
              held.stream,
              [](void* context) {
                const Fill* f = static_cast<Fill*>(context);
                std::copy(f->q->begin(), f->q->end(), f->p->seqstart_q.ints.begin());
                std::copy(f->k->begin(), f->k->end(), f->p->seqstart_k.ints.begin());
              },
              &fill) == TILEKILN_OK);
    const auto before = std::chrono::steady_clock::now();
    CHECK(tilekiln_fmha_bwd_launcher_prepare_async(launcher->handle, &workspace, &p.seqstart_q.view, &p.seqstart_k.view,
                                                   held.stream, &allocator.view) == TILEKILN_OK);
    {
      tilekiln_fmha_bwd_args args = p.args();
      args.workspace = &workspace;
      args.stream = held.stream;
      args.num_threads = 2;
      tilekiln_tensor dq = p.dq.view;  // gone when the stream comes to the call
      args.dq = &dq;
      CHECK(tilekiln_fmha_bwd_launcher_run(launcher->handle, &args) == TILEKILN_OK);
      memset(&dq, 0x55, sizeof(dq));
    }
    launcher.reset();
    // Had a call waited for the held stream, the program would hang here.
    CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(20));
    CHECK(!held.idle());
    CHECK(allocator.live == 1 && allocator.taken == 1);
    CHECK(std::isnan(p.dq.data[0]));
    held.go();
    CHECK(tilekiln_stream_synchronize(held.stream) == TILEKILN_OK);
    CHECK_TEXT(p.compare().c_str(), "");
    CHECK(tilekiln_staging_drain() == TILEKILN_OK);
    CHECK(allocator.live == 0);
    CHECK(allocator.releaser != std::this_thread::get_id() && allocator.releaser != std::thread::id());
  }
}

// The releases of many prepares, each with its own block; the memory set free is poisoned while the stream goes on.
void many_prepares() {
  BwdProblem p(group_sizes());
  Launcher launcher(problem_of(p));
  Allocator allocator;
  tilekiln_stream* stream = nullptr;
  CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
  for (int i = 0; i < 50; ++i) {
    CHECK(tilekiln_fmha_bwd_launcher_prepare_async(launcher.handle, &launcher.workspace, &p.seqstart_q.view,
                                                   &p.seqstart_k.view, stream, &allocator.view) == TILEKILN_OK);
  }
  tilekiln_fmha_bwd_args args = p.args();
  args.workspace = &launcher.workspace;
  args.stream = stream;
  CHECK(tilekiln_fmha_bwd_launcher_run(launcher.handle, &args) == TILEKILN_OK);
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_OK);
  CHECK_TEXT(p.compare().c_str(), "");
  CHECK(tilekiln_staging_drain() == TILEKILN_OK);
  CHECK(allocator.live == 0 && allocator.taken == 50);
  CHECK(tilekiln_stream_destroy(stream) == TILEKILN_OK);
}

bool untouched(const BwdProblem& p) {
  const std::vector<float> all = p.gradients();
  return std::all_of(all.begin(), all.end(), [](float x) { return std::isnan(x); });
}

void errors_in_the_stream() {
  BwdProblem p(group_sizes());
  Launcher launcher(problem_of(p));
  tilekiln_stream* stream = nullptr;
  CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
  const auto prepare = [&] {
    return tilekiln_fmha_bwd_launcher_prepare_async(launcher.handle, &launcher.workspace, &p.seqstart_q.view,
                                                    &p.seqstart_k.view, stream, tilekiln_staging_default());
  };
  tilekiln_fmha_bwd_args args = p.args();
  args.workspace = &launcher.workspace;
  args.stream = stream;
  std::swap(p.seqstart_q.ints[1], p.seqstart_q.ints[4]);
  CHECK(prepare() == TILEKILN_OK);
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "seqstart_q: must not decrease, but entry 2 is 100 after 437");
  std::swap(p.seqstart_q.ints[1], p.seqstart_q.ints[4]);
  // Not prepared now, and not by the failed prepare either.
  CHECK(tilekiln_fmha_bwd_launcher_run(launcher.handle, &args) == TILEKILN_OK);
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(),
             "workspace: was not prepared for these sequences, must be prepared by this launcher with their starts, "
             "for every run");
  CHECK(untouched(p));
  p.seqstart_k.ints.back() += 1000;
  CHECK(prepare() == TILEKILN_OK);
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(),
             "seqstart_k: sequence 3 was 1700 long, must be at most 700, the seqlen_k of the launcher's problem");
  p.seqstart_k.ints.back() -= 1000;
  CHECK(prepare() == TILEKILN_OK);
  CHECK(tilekiln_fmha_bwd_launcher_run(launcher.handle, &args) == TILEKILN_OK);
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_OK);
  CHECK_TEXT(p.compare().c_str(), "");
  CHECK(tilekiln_stream_destroy(stream) == TILEKILN_OK);
}

#define CHECK_REFUSED(call, text)                   \
  do {                                              \
    CHECK((call) == TILEKILN_INVALID_ARGUMENT);     \
    CHECK_TEXT(tilekiln_last_error(), text);        \
  } while (0)

void bad_arguments() {
  BwdProblem p(group_sizes());
  Launcher launcher(problem_of(p));
  tilekiln_fmha_bwd_launcher* const l = launcher.handle;
  tilekiln_stream* stream = nullptr;
  CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
  const tilekiln_tensor *q = &p.seqstart_q.view, *k = &p.seqstart_k.view, *w = &launcher.workspace;
  const tilekiln_staging_allocator* const plain = tilekiln_staging_default();
  CHECK_REFUSED(tilekiln_fmha_bwd_launcher_prepare_async(l, w, q, k, stream, nullptr),
                "allocator: was null, must be given: tilekiln_staging_default() is the library's own");
  CHECK_REFUSED(tilekiln_fmha_bwd_launcher_prepare_async(l, w, q, k, nullptr, plain),
                "stream: was null, must be one that tilekiln_stream_create made");
  CHECK_REFUSED(tilekiln_fmha_bwd_launcher_prepare_async(l, w, nullptr, k, stream, plain),
                "seqstart_q: was null, must be given in group mode");
  CHECK_REFUSED(tilekiln_fmha_bwd_launcher_prepare(l, nullptr, q, k), "workspace: was null, must be given");
  CHECK_REFUSED(tilekiln_fmha_bwd_launcher_prepare(nullptr, w, q, k),
                "launcher: was null, must be one that tilekiln_fmha_bwd_launcher_create made");
  tilekiln_tensor small = *w;
  small.shape[0] = 4096;
  CHECK(tilekiln_fmha_bwd_launcher_prepare(l, &small, q, k) == TILEKILN_INVALID_ARGUMENT);
  CHECK_HOLDS(tilekiln_last_error(), "workspace: had 4096 bytes, must have ");
  CHECK(tilekiln_fmha_bwd_launcher_prepare_async(l, &small, q, k, stream, plain) == TILEKILN_INVALID_ARGUMENT);
  tilekiln_staging_allocator poor = *plain;
  poor.allocate = [](void*, size_t) -> void* { return nullptr; };
  CHECK(tilekiln_fmha_bwd_launcher_prepare_async(l, w, q, k, stream, &poor) == TILEKILN_OUT_OF_MEMORY);
  CHECK(launcher.memory[100] == 0x7f);  // nothing of this was written

  tilekiln_fmha_bwd_args args = p.args();
  CHECK_REFUSED(tilekiln_fmha_bwd_launcher_run(l, &args),
                "workspace: was null, must be given: one that this launcher has prepared");
  args.workspace = w;
  CHECK_REFUSED(tilekiln_fmha_bwd_launcher_run(l, &args),
                "workspace: was not prepared for these sequences, must be prepared by this launcher with their starts, "
                "for every run");
  args.workers = 3;
  CHECK(tilekiln_fmha_bwd_launcher_run(l, &args) == TILEKILN_INVALID_ARGUMENT);
  CHECK_HOLDS(tilekiln_last_error(), "workers: was 3, must be 0 or ");
  args.workers = 0;
  args.causal = 1;
  CHECK(tilekiln_fmha_bwd_launcher_run(l, &args) == TILEKILN_INVALID_ARGUMENT);
  CHECK_HOLDS(tilekiln_last_error(), "args: asked for other features than the launcher's problem");
  CHECK(untouched(p));
  CHECK(tilekiln_stream_destroy(stream) == TILEKILN_OK);

  tilekiln_fmha_bwd_problem vast = problem_of(p);
  vast.nhead_q = vast.nhead_k = 1 << 28;
  tilekiln_fmha_bwd_launcher* no_launcher = nullptr;
  CHECK(tilekiln_fmha_bwd_launcher_create(&vast, &no_launcher) == TILEKILN_INVALID_ARGUMENT);
  CHECK_HOLDS(tilekiln_last_error(), "must be 0 above 1073741824 in group mode");

  // No kernel: told at once, and no launcher.
  tilekiln_fmha_bwd_problem problem = problem_of(p);
  problem.bias = TILEKILN_BIAS_ALIBI;
  problem.dbias = 1;
  tilekiln_fmha_bwd_launcher* none = l;
  CHECK(tilekiln_fmha_bwd_launcher_create(&problem, &none) == TILEKILN_NO_KERNEL);
  CHECK(none == nullptr);
  CHECK_HOLDS(tilekiln_last_error(), "a bias gradient (dbias) exists only for an elementwise bias");
  problem.dtype = TILEKILN_FP8;
  CHECK_REFUSED(tilekiln_fmha_bwd_launcher_create(&problem, &none), "dtype: was fp8, must be fp32, fp16 or bf16");
}

}  // namespace

int main() {
  every_mode_at_once();
  same_bits_as_the_plain_call();
  nothing_waits();
  many_prepares();
  errors_in_the_stream();
  bad_arguments();
  return check_result();
}
