// SPDX-License-Identifier: MIT
// Cost and gain of a second thread: the same calls on one thread and on two, in turn. Prints shape, the processor time of the
// process on two threads over that on one, and that of one thread over the busiest of the two, which is what the wall clock shows
// when the machine has nothing else to do. tools/bench/threads.py builds it and shows the result.
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tilekiln/tilekiln.h"

namespace {

double process_time() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Seconds on a processor, by thread.
std::map<int, double> thread_times() {
  std::map<int, double> times;
  DIR* directory = opendir("/proc/self/task");
  while (const dirent* entry = readdir(directory)) {
    const int thread = atoi(entry->d_name);
    if (thread == 0) continue;
    FILE* file = fopen(("/proc/self/task/" + std::string(entry->d_name) + "/schedstat").c_str(), "r");
    double nanoseconds = 0;
    if (file != nullptr && fscanf(file, "%lf", &nanoseconds) == 1) times[thread] = nanoseconds * 1e-9;
    if (file != nullptr) fclose(file);
  }
  closedir(directory);
  return times;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Shape {
  int32_t dtype;
  int64_t batch, seqlen, nhead, hdim;
  int causal;
};

void measure(const Shape& shape) {
  const int64_t lengths[] = {shape.batch, shape.seqlen, shape.nhead, shape.hdim};
  const size_t count = static_cast<size_t>(shape.batch * shape.seqlen * shape.nhead * shape.hdim);
  // 0x3f00 is a half in bf16, and two of them nearly that in fp32.
  std::vector<uint16_t> memory[4];
  tilekiln_tensor tensors[4] = {};
  for (int i = 0; i < 4; ++i) {
    memory[i].resize(count * (shape.dtype == TILEKILN_FP32 ? 2 : 1), 0x3f00);
    tilekiln_tensor& t = tensors[i];
    t.data = memory[i].data();
    t.dtype = shape.dtype;
    t.ndim = 4;
    t.device_type = TILEKILN_CPU;
    int64_t stride = 1;
    for (int d = 3; d >= 0; --d) {
      t.shape[d] = lengths[d];
      t.stride[d] = stride;
      stride *= lengths[d];
    }
  }
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = &tensors[0];
  args.k = &tensors[1];
  args.v = &tensors[2];
  args.out = &tensors[3];
  args.causal = shape.causal;
  const auto run = [&](int threads, int calls) {
    args.num_threads = threads;
    const double start = process_time();
    for (int i = 0; i < calls; ++i) {
      if (tilekiln_fmha_fwd(&args) != TILEKILN_OK) {
        fprintf(stderr, "%s\n", tilekiln_last_error());
        exit(1);
      }
    }
    return process_time() - start;
  };
  run(2, 1);
  // About a fifth of a second a round, so that threads meet often.
  const int calls = std::max(1, static_cast<int>(0.2 / std::max(run(1, 1), 1e-6)));
  std::vector<double> cost, gain;
  for (int round = 0; round < 9; ++round) {
    const double one = run(1, calls);
    std::map<int, double> before = thread_times();
    const double two = run(2, calls);
    double busiest = 0;
    for (const auto& [thread, seconds] : thread_times()) busiest = std::max(busiest, seconds - before[thread]);
    cost.push_back(two / one);
    gain.push_back(one / busiest);
  }
  printf("%s (%lld, %lld, %lld, %lld)%s|%.3f|%.2f\n", shape.dtype == TILEKILN_FP32 ? "fp32" : "bf16",
         static_cast<long long>(shape.batch), static_cast<long long>(shape.seqlen), static_cast<long long>(shape.nhead),
         static_cast<long long>(shape.hdim), shape.causal != 0 ? " causal" : "", median(cost), median(gain));
}

}  // namespace

int main() {
  for (int32_t dtype : {TILEKILN_FP32, TILEKILN_BF16}) {
    for (int causal : {0, 1}) {
      measure({dtype, 1, 1024, 8, 128, causal});
      measure({dtype, 2, 512, 8, 64, causal});
      measure({dtype, 1, 2048, 1, 128, causal});
    }
  }
  return 0;
}
