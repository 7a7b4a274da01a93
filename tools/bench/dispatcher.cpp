// SPDX-License-Identifier: MIT
// The cost of the dispatcher in C++ over a library that it is given: thread time, the least of 20 rounds.
#include <time.h>

#include <cstdio>

#include "tilekiln/dispatcher.hpp"

using namespace tilekiln::dispatcher;

namespace {

double microseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

Problem problem(int seqlen_q) {
  return ProblemBuilder()
      .api_family("fwd")
      .data_type("bf16")
      .dims(60, 64, 2, seqlen_q, 128)
      .nheads(8, 8)
      .mask_type("top_left")
      .lse(true)
      .build();
}

template <class Work>
double least(int rounds, const Work& work) {
  double best = 1e30;
  for (int i = 0; i < rounds; ++i) {
    const double begin = microseconds();
    work();
    best = std::min(best, microseconds() - begin);
  }
  return best;
}

}  // namespace

int main(int, char** arguments) {
  Registry registry("bench");
  Dispatcher dispatcher(registry);
  const double add = least(1, [&] { dispatcher.add_library(Library::open(arguments[1])); });
  int64_t kept = 0;
  const double build = least(20, [&] {
    for (int i = 1; i <= 1000; ++i) kept += problem(i).number("hdim_q");
  });
  const double choose = least(20, [&] {
    for (int i = 1; i <= 1000; ++i) kept += dispatcher.select(problem(i)) != nullptr;
  });
  std::string json;
  const double write = least(3, [&] { json = registry.to_json(); });
  Registry back("bench");
  const double read = least(1, [&] { from_json(back, json, "bench.json"); });
  if (kept < 20 * 1000 * 61) return 1;
  std::printf("kernels|%zu|\n", registry.size());
  std::printf("open a library, add its kernels|%.0f us|\n", add);
  std::printf("build a problem|%.3f us|\n", build / 1000);
  std::printf("build a problem and choose|%.3f us|<= 1 us\n", choose / 1000);
  std::printf("export as JSON|%.0f us|<= 100000 us of 10,000\n", write);
  std::printf("import|%.0f us|\n", read);
}
