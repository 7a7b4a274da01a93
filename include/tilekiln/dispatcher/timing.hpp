// SPDX-License-Identifier: MIT
// Timing of kernels: cold runs, repeats, a flushed cache, rotating buffers.
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace tilekiln::dispatcher {

struct Timing {
  bool on = false;  // off: one run, no clock
  int cold = 5;     // runs before the clock
  int repeat = 10;  // runs that are timed, each by itself
  // Memory that is written before each timed run, so that nothing of the problem is left in the cache; 0: none.
  size_t flush_bytes = 0;
  // Sets of buffers that runs take in turn, so that none finds its own in the cache. 1: the caller's alone.
  int rotating = 1;

  Timing& set(int cold_runs, int repeats) {
    if (cold_runs < 0) throw std::invalid_argument("cold: was " + std::to_string(cold_runs) + ", must be at least 0");
    if (repeats < 1) throw std::invalid_argument("repeat: was " + std::to_string(repeats) + ", must be at least 1");
    on = true;
    cold = cold_runs;
    repeat = repeats;
    return *this;
  }
};

// Milliseconds of wall time; all 0 when nothing was timed.
struct Times {
  double min = 0, median = 0, max = 0;
  int runs = 0;
  double mean = 0;
};

// Runs what is given: run(i) with i counting through the sets of buffers.
inline Times measure(const Timing& timing, const std::function<void(int)>& run) {
  if (!timing.on) {
    run(0);
    return {};
  }
  const int sets = std::max(1, timing.rotating);
  for (int i = 0; i < timing.cold; ++i) run(i % sets);
  std::vector<unsigned char> flushed(timing.flush_bytes);
  std::vector<double> taken;
  for (int i = 0; i < timing.repeat; ++i) {
    volatile unsigned char* const lines = flushed.data();
    for (size_t at = 0; at < flushed.size(); at += 64) lines[at] = static_cast<unsigned char>(lines[at] + 1);
    const auto begin = std::chrono::steady_clock::now();
    run(i % sets);
    taken.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(taken.begin(), taken.end());
  const size_t half = taken.size() / 2;
  const double median = taken.size() % 2 ? taken[half] : (taken[half - 1] + taken[half]) / 2;
  const double mean = std::accumulate(taken.begin(), taken.end(), 0.0) / static_cast<double>(taken.size());
  return {taken.front(), median, taken.back(), static_cast<int>(taken.size()), mean};
}

}  // namespace tilekiln::dispatcher
