// SPDX-License-Identifier: MIT
// The cost of the backend's seam for a launch: units that do next to nothing, by the CPU's backend and directly, in turn.
// Prints the nanoseconds of thread CPU time of both. tools/bench/launch.py builds it and shows the result.
#include <stdio.h>
#include <time.h>

#include <algorithm>
#include <vector>

#include "kernels/backends/cpu/parallel.h"
#include "kernels/runtime/launch.h"

using namespace tilekiln;

namespace {

double nanoseconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

struct Problem { long long numbers[48]; };  // about as long as those of attention

template <class Call>
double per_call(Call&& call) {
  constexpr int calls = 20000;
  const double before = nanoseconds();
  for (int i = 0; i < calls; ++i) call();
  return (nanoseconds() - before) / calls;
}

}  // namespace

int main() {
  Run run;
  const Choice choice;
  const Problem problem = {};
  volatile long long sum = 0;
  auto unit = [&](int64_t number, void*) { sum = sum + number + problem.numbers[0]; };
  const auto range = [&](int64_t first, int64_t last, void* scratch) {
    for (int64_t number = first; number < last; ++number) unit(number, scratch);
  };
  for (const int64_t units : {1, 16}) {
    std::vector<double> direct, seam;
    for (int round = 0; round < 101; ++round) {
      direct.push_back(per_call([&] { static_cast<void>(run_ranges(run, units, 1.0, 64, false, range)); }));
      seam.push_back(per_call([&] { static_cast<void>(launch_stage(run, choice, problem, units, 1.0, 64, unit)); }));
    }
    std::nth_element(direct.begin(), direct.begin() + 50, direct.end());
    std::nth_element(seam.begin(), seam.begin() + 50, seam.end());
    printf("%d|%.1f|%.1f\n", static_cast<int>(units), direct[50], seam[50]);
  }
}
