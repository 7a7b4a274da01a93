// SPDX-License-Identifier: MIT
// fmha_bwd through the C ABI: modes, lengths, groups of heads, threads, workspaces, determinism, against double
// precision.
#include "bwd_problem.h"

#include <memory>
#include <thread>

#include "check.h"

using namespace tilekiln::test;

namespace {

std::string describe(const BwdSizes& s) {
  std::string text = s.group ? "group" : "batch";
  for (size_t b = 0; b < s.sq.size(); ++b) text += " " + std::to_string(s.sq[b]) + "x" + std::to_string(s.sk[b]);
  text += " heads " + std::to_string(s.nhead_q) + "/" + std::to_string(s.nhead_k);
  const std::pair<bool, const char*> words[] = {{s.padded, "padded"},
                                                {s.causal, "causal"},
                                                {s.bias, "bias"},
                                                {s.sink, "sink"},
                                                {s.deterministic, "deterministic"}};
  for (const auto& [held, name] : words) {
    if (held) text += std::string(" ") + name;
  }
  return text + " window " + std::to_string(s.window_left) + "," + std::to_string(s.window_right) + " workers " +
         std::to_string(s.workers);
}

void check(const BwdSizes& sizes, const std::string& problem, int line) {
  check_that(problem.empty(), (describe(sizes) + ": " + problem).c_str(), __FILE__, line);
}

std::vector<BwdSizes> all_cases() {
  std::vector<BwdSizes> all;
  const auto add = [&](auto&& change) {
    BwdSizes sizes;
    sizes.seed = static_cast<unsigned>(all.size() + 1);
    change(sizes);
    all.push_back(sizes);
  };
  add([](BwdSizes&) {});
  add([](BwdSizes& s) {
    s.causal = true;
    s.sq = s.sk = {600, 600};
  });
  add([](BwdSizes& s) {
    s.nhead_q = 6;
    s.nhead_k = 1;
    s.sk = {700};
    s.window_left = 50;
    s.window_right = 20;
  });
  add([](BwdSizes& s) {
    s.bias = true;
    s.sq = {65, 65, 65};
    s.sk = {300, 300, 300};
  });
  add([](BwdSizes& s) {
    s.sink = true;
    s.sq = {300, 300};
    s.sk = {300, 300};
    s.causal = true;
  });
  add([](BwdSizes& s) {
    s.padded = true;
    s.sq = {70, 0, 33};
    s.sk = {131, 20, 0};
    s.nhead_q = s.nhead_k = 3;
  });
  add([](BwdSizes& s) {
    s.group = true;
    s.sq = {100, 0, 37, 600};
    s.sk = {200, 64, 130, 1100};
  });
  add([](BwdSizes& s) {
    s.group = true;
    s.causal = true;
    s.nhead_q = s.nhead_k = 2;
    s.sq = {1, 513, 64, 2};
    s.sk = {1, 513, 0, 900};
  });
  add([](BwdSizes& s) {
    s.group = s.padded = true;
    s.sq = {1, 130, 64, 0};
    s.sk = {700, 130, 0, 300};
    s.bias = true;
  });
  add([](BwdSizes& s) {
    s.group = true;
    s.sq = {5, 7};
    s.sk = {0, 0};
  });
  add([](BwdSizes& s) {
    s.sq = {20};
    s.sk = {0};
  });
  add([](BwdSizes& s) {
    s.sq = {0};
    s.sk = {20};
  });
  return all;
}

// Problems are made once: an answer in double is most of a sanitized run.
std::vector<std::unique_ptr<BwdProblem>>& problems() {
  static std::vector<std::unique_ptr<BwdProblem>> made;
  if (!made.empty()) return made;
  std::vector<BwdSizes> all = all_cases();
#if defined(__SANITIZE_THREAD__)
  // Masks and biases do not change which thread runs which unit: every fourth case races like the others, in minutes less.
  std::vector<BwdSizes> fourth;
  for (size_t i = 0; i < all.size(); i += 4) fourth.push_back(all[i]);
  all = fourth;
#endif
  for (const BwdSizes& sizes : all) made.push_back(std::make_unique<BwdProblem>(sizes));
  return made;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool slow = true;  // ten times as long: every mode still, fewer repetitions
#else
constexpr bool slow = false;
#endif

void gradients() {
  const std::vector<int> all_workers = slow ? std::vector{0, 5} : std::vector{0, 1, 5, 40};
  const std::vector<int> all_threads = slow ? std::vector{3, 1} : std::vector{1, 2, 3, 4, 7, 1};
  for (const std::unique_ptr<BwdProblem>& problem : problems()) {
    BwdSizes sizes = problem->sizes();
    for (const bool deterministic : {false, true}) {
      sizes.deterministic = deterministic;
      for (const int workers : all_workers) {
        if (workers != 0 && !deterministic) continue;
        sizes.workers = workers;
        std::vector<float> first;
        for (const int threads : all_threads) {
          tilekiln_fmha_bwd_args args = problem->args();
          args.deterministic = deterministic;
          args.workers = workers;
          args.num_threads = threads;
          const tilekiln_status status = tilekiln_fmha_bwd(&args);
          if (status != TILEKILN_OK) {
            check(sizes, tilekiln_last_error(), __LINE__);
            break;
          }
          check(sizes, problem->compare(), __LINE__);
          const std::vector<float> now = problem->gradients();
          if (first.empty()) first = now;
          if (deterministic)
            check(sizes, memcmp(first.data(), now.data(), now.size() * sizeof(float)) == 0 ? "" : "bits differ",
                  __LINE__);
        }
      }
    }
  }
}

// The caller's workspace, dirty; its exact size; one byte less is refused.
void workspaces() {
  for (const std::unique_ptr<BwdProblem>& problem : problems()) {
    BwdSizes sizes = problem->sizes();
    for (const bool deterministic : {false, true}) {
      sizes.deterministic = deterministic;
      tilekiln_fmha_bwd_args args = problem->args();
      args.deterministic = deterministic;
      uint64_t bytes = 0;
      CHECK(tilekiln_fmha_bwd_workspace_size(&args, &bytes) == TILEKILN_OK);
      std::vector<char> memory(bytes + 16, static_cast<char>(0x7f));
      tilekiln_tensor workspace = {};
      workspace.data = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
      workspace.dtype = TILEKILN_UINT8;
      workspace.ndim = 1;
      workspace.device_type = TILEKILN_CPU;
      workspace.shape[0] = static_cast<int64_t>(bytes);
      workspace.stride[0] = 1;
      args.workspace = &workspace;
      args.num_threads = 2;
      CHECK(tilekiln_fmha_bwd(&args) == TILEKILN_OK);
      check(sizes, problem->compare(), __LINE__);
      --workspace.shape[0];
      args = problem->args();
      args.deterministic = deterministic;
      args.workspace = &workspace;
      CHECK(tilekiln_fmha_bwd(&args) == TILEKILN_INVALID_ARGUMENT);
      const std::vector<float> untouched = problem->gradients();
      CHECK(std::all_of(untouched.begin(), untouched.end(), [](float x) { return std::isnan(x); }));
    }
  }
}

// lse with strides of its own; delta given back; a stream; several calls of one problem at once.
void placements() {
  BwdSizes sizes = all_cases()[1];
  BwdProblem problem(sizes);
  tilekiln_fmha_bwd_args args = problem.args();
  const tilekiln_tensor& lse = problem.lse.view;
  std::vector<float> wide(static_cast<size_t>(lse.shape[0] * lse.shape[1] * (lse.shape[2] + 9)), NAN), delta = wide;
  tilekiln_tensor spread = lse, answer = lse;
  spread.stride[1] = lse.shape[2] + 9;
  spread.stride[0] = spread.stride[1] * lse.shape[1];
  for (int64_t row = 0; row < lse.shape[0] * lse.shape[1]; ++row) {
    std::copy_n(problem.lse.data.begin() + row * lse.shape[2], lse.shape[2], wide.begin() + row * spread.stride[1]);
  }
  spread.data = wide.data();
  args.lse = &spread;
  CHECK(tilekiln_fmha_bwd(&args) == TILEKILN_OK);
  check(sizes, problem.compare(), __LINE__);

  args = problem.args();
  answer = spread;
  answer.data = delta.data();
  args.lse = &spread;
  args.delta = &answer;
  tilekiln_stream* stream = nullptr;
  CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
  args.stream = stream;
  CHECK(tilekiln_fmha_bwd(&args) == TILEKILN_OK);
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_OK);
  check(sizes, problem.compare(), __LINE__);
  double expected = 0;
  for (int d = 0; d < sizes.hdim_v; ++d)
    expected += static_cast<double>(problem.out.data[static_cast<size_t>(d)]) *
                static_cast<double>(problem.dout.data[static_cast<size_t>(d)]);
  CHECK(fabs(static_cast<double>(delta[0]) - expected) < 1e-4);
  args.delta = &lse;
  CHECK(tilekiln_fmha_bwd(&args) == TILEKILN_INVALID_ARGUMENT);
  CHECK(tilekiln_stream_destroy(stream) == TILEKILN_OK);

  std::vector<std::thread> callers;
  std::vector<std::string> said(4);
  for (size_t i = 0; i < said.size(); ++i) {
    callers.emplace_back([&, i] {
      BwdSizes own = all_cases()[i % 2 == 0 ? 6 : 2];
      own.deterministic = i < 2;
      BwdProblem mine(own);
      tilekiln_fmha_bwd_args call = mine.args();
      call.num_threads = 3;
      said[i] = tilekiln_fmha_bwd(&call) == TILEKILN_OK ? mine.compare() : tilekiln_last_error();
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::string& text : said) CHECK_TEXT(text.c_str(), "");
}

}  // namespace

int main() {
  gradients();
  workspaces();
  placements();
  return check_result();
}
