// SPDX-License-Identifier: MIT
// The errors of fmha_bwd for wrong arguments, word for word, after which nothing is written; the inspection of
// workspaces.
#include <functional>

#include "bwd_problem.h"
#include "check.h"

using namespace tilekiln::test;

namespace {

bool untouched(const BwdProblem& p) {
  const std::vector<float> all = p.gradients();
  return std::all_of(all.begin(), all.end(), [](float x) { return std::isnan(x); });
}

BwdSizes plain() { return BwdSizes(); }
BwdSizes grouped() {
  BwdSizes sizes;
  sizes.group = true;
  sizes.sq = {10, 20};
  sizes.sk = {30, 40};
  return sizes;
}

// Makes one problem wrong and looks at the answer.
class Bad {
 public:
  explicit Bad(const BwdSizes& sizes) : p(sizes), args(p.args()) {}
  // A copy of a tensor of the arguments, to be changed.
  tilekiln_tensor& own(const tilekiln_tensor*& argument) {
    copy = *argument;
    argument = &copy;
    return copy;
  }
  void refused(const char* text, int line) {
    check_that(tilekiln_fmha_bwd(&args) == TILEKILN_INVALID_ARGUMENT, text, __FILE__, line);
    check_text(tilekiln_last_error(), text, __FILE__, line);
    check_that(untouched(p), "nothing is written", __FILE__, line);
  }
  BwdProblem p;
  tilekiln_fmha_bwd_args args;
  tilekiln_tensor copy = {};
};
#define REFUSED(sizes, change, text)               \
  do {                                             \
    Bad bad(sizes);                                \
    [[maybe_unused]] auto& args = bad.args;        \
    change;                                        \
    bad.refused(text, __LINE__);                   \
  } while (0)

void arguments() {
  REFUSED(plain(), args.size = 8,
          ("args: size was 8, must be " + std::to_string(sizeof(tilekiln_fmha_bwd_args)) +
           ", sizeof(tilekiln_fmha_bwd_args) of ABI 2: start from tilekiln_fmha_bwd_defaults()")
              .c_str());
  REFUSED(plain(), args.dout = nullptr, "dout: was null, must be given");
  REFUSED(plain(), args.lse = nullptr, "lse: was null, must be given");
  REFUSED(plain(), args.dv = nullptr, "dv: was null, must be given");
  REFUSED(plain(), args.deterministic = 2, "deterministic: was 2, must be 0 or 1");
  REFUSED(plain(), args.workers = 4,
          "workers: was given without deterministic, must be 0: only the deterministic schedule has any");
  REFUSED(plain(), args.workers = -1, "workers: was -1, must be 0 (chosen from the sizes) or from 1 to 65536");
  REFUSED(plain(), args.causal = 7, "causal: was 7, must be 0 or 1");
  REFUSED(plain(), args.dbias = &bad.p.dq.view,
          "dbias: was given without bias, must be null: there is nothing it is the gradient of");
  REFUSED(plain(), args.d_sink = &bad.p.dq.view,
          "d_sink: was given without sink, must be null: there is nothing it is the gradient of");
  REFUSED(plain(), bad.own(args.dq).shape[3] = 39, "dq: hdim was 39, must be 40, the hdim of q");
  REFUSED(plain(), bad.own(args.dout).shape[2] = 3, "dout: nhead was 3, must be 4, the nhead of out");
  REFUSED(plain(), bad.own(args.dk).shape[1] = 7, "dk: seqlen was 7, must be 131, the seqlen of k");
  REFUSED(plain(), bad.own(args.dv).shape[0] = 0, "dv: batch was 0, must be 1, the batch of v");
  REFUSED(plain(), bad.own(args.dk).ndim = 3, "dk: had 3 dimensions, must have 4: as k");
  REFUSED(plain(), bad.own(args.dq).dtype = TILEKILN_INT32, "dq: dtype was int32, must be fp32, the dtype of q");
  REFUSED(plain(), bad.own(args.q).dtype = TILEKILN_FP8, "q: dtype was fp8, must be fp32, fp16 or bf16");
  REFUSED(plain(), args.dq = args.q, "dq: shares memory with q, must have its own");
  REFUSED(plain(), args.dk = args.k, "dk: shares memory with k, must have its own");
  REFUSED(plain(), bad.own(args.dq).stride[1] = 0,
          "dq: strides put two elements at one address, must give each its own: pass an array that is not expanded");
  REFUSED(plain(), args.delta = args.lse, "delta: shares memory with lse, must have its own");
  REFUSED(plain(), bad.own(args.lse).shape[2] = 60, "lse: seqlen_q was 60, must be 70, the seqlen of q");
  REFUSED(plain(), args.randval = &bad.p.dq.view,
          "randval: was given without dropout_p, must be null: there are no random bytes without dropout");
  REFUSED(plain(), args.workspace = &bad.p.dq.view, "workspace: dtype was fp32, must be uint8");
  REFUSED(plain(), args.num_threads = -1, "num_threads: was -1, must be 0 (the environment decides) or from 1 to 1024");
  REFUSED(plain(), args.instance = 1 << 30,
          ("instance: was 1073741824, must be from 0 to " + std::to_string(tilekiln_instance_count() - 1) +
           ", or -1 (the dispatcher chooses)")
              .c_str());
  REFUSED(grouped(), args.seqstart_q = nullptr,
          "cu_seqlens_q: was null, must be given in group mode (q of 3 dimensions) unless seqstart_q is");
  REFUSED(grouped(), bad.p.seqstart_q.ints[1] = 99, "seqstart_q: must not decrease, but entry 2 is 30 after 99");
  REFUSED(grouped(), bad.p.seqstart_k.ints[2] = 99,
          "seqstart_k: ended at 99, must end at 70 or before, the total length of k");
}

void workspace_arguments() {
  Bad bad(plain());
  std::vector<unsigned char> memory(64);
  Tensor workspace;
  workspace.shape({16}, TILEKILN_UINT8);
  workspace.view.data = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16 + 1);
  bad.args.workspace = &workspace.view;
  CHECK(tilekiln_fmha_bwd(&bad.args) == TILEKILN_INVALID_ARGUMENT);
  CHECK_HOLDS(tilekiln_last_error(), "must be aligned to 16 bytes");
  workspace.view.data = static_cast<char*>(workspace.view.data) - 1;
  uint64_t bytes = 0;
  CHECK(tilekiln_fmha_bwd_workspace_size(&bad.args, &bytes) == TILEKILN_OK);
  CHECK(bytes == 4096 + 4 * 70 * 4 * 40);
  bad.refused(("workspace: had 16 bytes, must have " + std::to_string(bytes)).c_str(), __LINE__);
}

// Random structs over the bytes of right ones: no crash, no write when refused. What a stride or a length reaches
// beyond the arrays' memory is the caller's to know, so those fields are left alone.
void random_scalars() {
  std::mt19937 random(5);
  Bad bad(plain());
  int accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    bad.args = bad.p.args();
    auto* const first = reinterpret_cast<unsigned char*>(&bad.args) + offsetof(tilekiln_fmha_bwd_args, softcap);
    const size_t length = offsetof(tilekiln_fmha_bwd_args, stream) - offsetof(tilekiln_fmha_bwd_args, softcap);
    for (unsigned change = random() % 3 + 1; change > 0; --change) {
      const int value = static_cast<int>(random() % 5) - 1;
      memcpy(first + random() % (length / 4) * 4, &value, 4);
    }
    bad.args.num_threads = 1;
    const tilekiln_status status = tilekiln_fmha_bwd(&bad.args);
    accepted += status == TILEKILN_OK;
    if (status != TILEKILN_OK) CHECK(untouched(bad.p) && *tilekiln_last_error() != 0);
  }
  CHECK(accepted > 100 && accepted < 2900);
}

void explanations() {
  Bad bad(plain());
  char text[8192];
  size_t length = 0;
  int64_t instances[TILEKILN_BWD_STAGES] = {-2, -2, -2};
  CHECK(tilekiln_fmha_bwd_find(&bad.args, instances) == TILEKILN_OK);
  CHECK(tilekiln_fmha_bwd_why(&bad.args, text, sizeof(text), &length) == TILEKILN_OK && length == strlen(text));
  for (const int64_t instance : instances) {
    CHECK_HOLDS(text, (std::string("chosen: ") + tilekiln_instance_name(instance)).c_str());
  }
  bad.args.softcap = 3;
  Tensor bias;
  bias.shape({1, 1, 70, 131}, TILEKILN_FP32);
  bad.args.bias = &bias.view;
  CHECK(tilekiln_fmha_bwd(&bad.args) == TILEKILN_NO_KERNEL);
  CHECK_HOLDS(
      tilekiln_last_error(),
      "rule softcap_without_elementwise_bias forbids it: a soft cap is allowed only without an elementwise bias");
  CHECK(tilekiln_fmha_bwd_why(&bad.args, text, sizeof(text), nullptr) == TILEKILN_OK);
  CHECK_HOLDS(text, "rule softcap_without_elementwise_bias forbids it");
  // An instance of another stage is none of the main one.
  bad.args = bad.p.args();
  bad.args.instance = instances[TILEKILN_BWD_DOT_DO_O];
  CHECK(tilekiln_fmha_bwd(&bad.args) == TILEKILN_INVALID_ARGUMENT);
  CHECK_HOLDS(tilekiln_last_error(), "must be one of fmha_bwd_dq_dk_dv");
}

tilekiln_bwd_workspace_problem workspace_problem(const std::vector<int32_t>& q, const std::vector<int32_t>& k) {
  tilekiln_bwd_workspace_problem problem = {};
  problem.size = sizeof(problem);
  problem.group = problem.deterministic = 1;
  problem.batch = static_cast<int32_t>(q.size()) - 1;
  problem.seqstart_q = q.data();
  problem.seqstart_k = k.data();
  return problem;
}

void inspection() {
  const std::vector<int32_t> starts = {0, 4096, 7168, 9216, 10240};
  tilekiln_bwd_workspace_problem problem = workspace_problem(starts, starts);
  problem.nhead_q = 8;
  problem.hdim_q = 128;
  problem.kM0 = 16;
  problem.kN0 = 128;
  problem.workers = 256;
  tilekiln_bwd_workspace_layout layout = {};
  CHECK(tilekiln_bwd_workspace_plan(&problem, &layout, nullptr, 0, nullptr, nullptr) == TILEKILN_INVALID_ARGUMENT);
  layout.size = sizeof(layout);
  alignas(16) static char host[12288];
  std::vector<int32_t> map(256);
  std::vector<int64_t> work(256);
  CHECK(tilekiln_bwd_workspace_plan(&problem, &layout, host, 100, nullptr, nullptr) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "capacity: was 100, must be 12288 or more");
  CHECK(tilekiln_bwd_workspace_plan(&problem, &layout, host, sizeof(host), map.data(), work.data()) == TILEKILN_OK);
  CHECK(layout.host_bytes == 12288 && layout.device_bytes == 490733568 && layout.upper_bound_bytes == 1342177280);
  CHECK(layout.target_w == 7680 && layout.total_w == 1966080 && layout.prezero == 1 && layout.zero_dq_acc == 0);
  const int32_t* const nsplits = reinterpret_cast<const int32_t*>(host + layout.nsplits_offset);
  CHECK(layout.nsplits_count == 4 && nsplits[0] == 18 && nsplits[1] == 11 && nsplits[2] == 5 && nsplits[3] == 2);
  int64_t sum = 0;
  for (const int64_t pairs : work) sum += pairs;
  CHECK(sum == 8LL * (4096LL * 4096 + 3072LL * 3072 + 2048LL * 2048 + 1024LL * 1024));
  CHECK(map[1] == 32);
  problem.kN0 = 0;
  CHECK(tilekiln_bwd_workspace_plan(&problem, &layout, nullptr, 0, nullptr, nullptr) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "kN0: was 0, must be from 1 to 65536");
}

// Uneven batches with the tile of the CPU: threads get even work where the plain order does not give it.
void balance() {
  const std::vector<std::vector<int>> cases = {{8192, 512, 512, 512, 512, 512, 512, 512},
                                               {4096, 64, 64, 64},
                                               {2048, 1024, 512, 256, 128},
                                               {100, 3000, 50, 700, 1, 4000}};
  for (const auto& lengths : cases) {
    std::vector<int32_t> starts = {0};
    for (const int length : lengths) starts.push_back(starts.back() + length);
    for (const int heads : {2, 8, 32}) {
      for (const int causal : {0, 1}) {
        for (const int deterministic : {0, 1}) {
          tilekiln_bwd_workspace_problem problem = workspace_problem(starts, starts);
          problem.deterministic = deterministic;
          problem.nhead_q = heads;
          problem.hdim_q = 64;
          problem.kM0 = 64;
          problem.kN0 = 256;
          problem.causal = causal;
          problem.threads = 4;
          tilekiln_bwd_workspace_layout layout = {};
          layout.size = sizeof(layout);
          CHECK(tilekiln_bwd_workspace_plan(&problem, &layout, nullptr, 0, nullptr, nullptr) == TILEKILN_OK);
          printf("longest %d of %zu, heads %d%s%s: workers %d, thread balance %.3f, worker balance %.3f, plain %.3f\n",
                 *std::max_element(lengths.begin(), lengths.end()), lengths.size(), heads, causal ? " causal" : "",
                 deterministic ? " deterministic" : "", layout.workers, layout.thread_balance, layout.worker_balance,
                 layout.plain_balance);
          CHECK(layout.thread_balance <= 1.1);
          CHECK(layout.plain_balance > layout.thread_balance);
        }
      }
    }
  }
}

}  // namespace

int main() {
  arguments();
  workspace_arguments();
  random_scalars();
  explanations();
  inspection();
  balance();
  return check_result();
}
