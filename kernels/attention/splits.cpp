// SPDX-License-Identifier: MIT
#include "kernels/attention/splits.h"

#include <algorithm>

namespace tilekiln::fmha {
namespace {

// The share of the workers that are busy while blocks * splits blocks run, wave after wave.
double efficiency(i64 blocks, i64 workers, int splits) {
  const double waves = static_cast<double>(blocks) * splits / static_cast<double>(workers);
  return waves / __builtin_ceil(waves);
}

}  // namespace

int best_splits(i64 blocks, i64 workers) {
  if (blocks < 1 || static_cast<double>(blocks) >= 0.8 * static_cast<double>(workers)) return 1;
  const int most = static_cast<int>(std::min<i64>(max_splits, workers));
  double best = 0;
  for (int splits = 1; splits <= most; ++splits) best = std::max(best, efficiency(blocks, workers, splits));
  for (int splits = 1; splits <= most; ++splits) {
    if (efficiency(blocks, workers, splits) >= 0.85 * best) return splits;
  }
  return 1;
}

}  // namespace tilekiln::fmha
