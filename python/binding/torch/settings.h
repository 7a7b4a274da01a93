// SPDX-License-Identifier: MIT
/* Settings of attention: its arguments that are no arrays, but for softmax_scale, by number. The operator that autograd records has no
 * place for them, and hands its forward's `dropout_p` on to its backward: their number stands there. */
#ifndef TILEKILN_TORCH_SETTINGS_H
#define TILEKILN_TORCH_SETTINGS_H

#include <array>

#include "operators.h"

namespace tilekiln::torch {

/* Those of scaled_dot_product_attention; PyTorch's operator says by a flag of its own which of the two. Others come from Python. */
constexpr int kFull = 0, kCausal = 1, kSettings = 1024;
using Settings = std::vector<Argument>;

/* Never moved or freed: calls read them while others are made. */
inline std::array<std::unique_ptr<const Settings>, kSettings> settings;
inline std::atomic<int> settings_count;

/* "s!layout.0=bhsd,b!causal.0=1": the number of these, or -1: there are too many. One thread at a time. */
inline int number_settings(const char* words) {
  const int number = settings_count.load(std::memory_order_relaxed);
  if (number == kSettings) return -1;
  auto made = std::make_unique<Settings>();
  for (const std::string& text : split(words, ','))
    if (!text.empty()) made->push_back(argument_of(text));
  settings[size_t(number)] = std::move(made);
  settings_count.store(number + 1, std::memory_order_release);
  return number;
}

/* The number that the operator that autograd records is given; -1: of a call of somebody else, with dropout. */
inline int settings_of(double dropout_p, bool causal) {
  if (dropout_p == 0) return causal ? kCausal : kFull;
  const int number = dropout_p > kCausal && dropout_p < kSettings ? int(dropout_p) : -1;
  return !causal && number == dropout_p && number < settings_count.load(std::memory_order_acquire) ? number : -1;
}

/* Do results lie in memory as q does, heads inside tokens or not? Others are dense. */
inline bool keeps_order(int number) { return number <= kCausal; }

}  // namespace tilekiln::torch

#endif
