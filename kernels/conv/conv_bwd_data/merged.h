// SPDX-License-Identifier: MIT
// The gradient of x where a group has few channels and each place of a pixel in its stride meets the same pixels of dy, as those of patches: one
// convolution of dy, whose outputs are the channels at all places, into memory of the call. dx is written from there.
#pragma once
#include <cstring>

#include "kernels/conv/host.h"

namespace tilekiln::op::conv_bwd_data {

using conv::Convolution;
using conv::i64;
using conv::kSpatial;

constexpr i64 kFewOutputs = 16;  // a vector of sums

// Pixels of dy, from first to last, that meet those of dx at all places of a dimension: place r + q step meets q + first.. by taps
// r - start - (q' - q) step.
struct Reach { i64 first, last; };
inline Reach reach_of(const Convolution& c, int i) {
  const auto down = [&](i64 a) { return a >= 0 ? a / c.step[i] : -((c.step[i] - 1 - a) / c.step[i]); };
  return {down(-c.start[i] - c.filter[i] + c.step[i]), down(c.step[i] - 1 - c.start[i])};  // start: less the padding
}

// Tells whether places are worth merging, and no filter of them lacks a tap: an infinite dy goes nowhere else.
inline bool merges(const Convolution& c, const Choice& choice) {
  if (static_cast<const conv::Engine*>(choice.engine)->lanes > 0 || c.outputs > kFewOutputs) return false;
  if (c.batch * conv::product(c.in) * conv::product(c.out) == 0) return false;
  for (int i = 0; i < kSpatial; ++i) {
    const Reach reach = reach_of(c, i);
    if (c.step[i] > 1 && (c.tap[i] != 1 || (reach.last - reach.first + 1) * c.step[i] != c.filter[i])) return false;
  }
  return conv::product(c.step) > 1;
}

// Elements of the width of E: filters of an output of the merged convolution, [tap][channel] or, not inner, [channel][tap].
template <class E> void merge_filters(const Convolution& c, const Convolution& to, i64 unit, bool inner, E* made) {
  const i64 group = unit / to.outputs, k = unit % c.outputs;
  i64 number = unit % to.outputs / c.outputs, place[kSpatial];
  for (int i = kSpatial; i-- > 0; number /= c.step[i]) place[i] = number % c.step[i];
  const E* const w = reinterpret_cast<const E*>(c.w) + group * c.w_group + k * c.w_step.batch;
  const i64 taps = conv::product(to.filter);
  for (i64 t = 0; t < taps; ++t) {
    i64 from = 0, rest = t;
    for (int i = kSpatial; i-- > 0; rest /= to.filter[i]) {
      const i64 at = rest % to.filter[i] + to.start[i];  // of dy, for q of 0
      from += (c.step[i] > 1 ? place[i] - c.start[i] - at * c.step[i] : rest % to.filter[i]) * c.w_step.at[i];
    }
    E* const row = made + (inner ? t * c.channels : t);
    for (i64 n = 0; n < c.channels; ++n) row[inner ? n : n * taps] = w[from + n * c.w_step.channel];
  }
}

// A row of dx from what the merged convolution made.
template <class E> void part_row(const Convolution& c, const Convolution& from, i64 unit) {
  i64 at[kSpatial], place = 0, rest = unit;
  at[1] = rest % c.out[1], rest /= c.out[1];
  at[0] = rest % c.out[0], rest /= c.out[0];
  const E* made = reinterpret_cast<const E*>(from.y) + rest * from.y_step.batch;
  E* const dx = reinterpret_cast<E*>(c.y) + rest * c.y_step.batch + at[0] * c.y_step.at[0] + at[1] * c.y_step.at[1];
  for (int i = 0; i < 2; ++i) {
    place = place * c.step[i] + at[i] % c.step[i];
    made += at[i] / c.step[i] * from.y_step.at[i];
  }
  const i64 step = c.step[2], pixel = from.y_step.at[2], apart = step * c.y_step.at[2];
  for (i64 k = 0; k < c.groups * c.outputs; ++k) {
    for (i64 r = 0; r < std::min(step, c.out[2]); ++r) {
      const i64 output = k / c.outputs * from.outputs + (place * step + r) * c.outputs + k % c.outputs;
      const E* const row = made + output * from.y_step.channel;
      E* const to = dx + k * c.y_step.channel + r * c.y_step.at[2];
      for (i64 q = 0; q < (c.out[2] - r + step - 1) / step; ++q) to[q * apart] = row[q * pixel];
    }
  }
}

[[nodiscard]] inline tilekiln_status launch_merged(const Run& call, const Choice& choice, const Convolution& c) {
  Convolution m = c;
  const bool inner = c.x_step.channel == 1;
  m.outputs = c.outputs * conv::product(c.step);
  for (int i = 0; i < kSpatial; ++i) {
    m.step[i] = 1;
    if (c.step[i] == 1) {
      m.tap[i] = -c.tap[i], m.start[i] = -c.start[i];
      continue;
    }
    const Reach reach = reach_of(c, i);
    m.tap[i] = 1, m.start[i] = reach.first, m.filter[i] = reach.last - reach.first + 1;
    m.out[i] = conv::divide_up(c.out[i], c.step[i]);
  }
  const i64 words = c.channels * conv::product(m.filter), size = conv::size_of(c.dtype), all = m.groups * m.outputs;
  const i64 pixels = conv::product(m.out);
  CallMemory filters, made;
  TILEKILN_TRY(filters.get(call, static_cast<size_t>(all * words * size)));
  TILEKILN_TRY(made.get(call, static_cast<size_t>(c.batch * all * pixels * size)));
  m.w = filters.as<char>(), m.y = made.as<char>();
  m.w_group = m.outputs * words, m.w_step.batch = words;
  m.w_step.channel = inner ? 1 : conv::product(m.filter), m.w_step.at[2] = inner ? c.channels : 1;
  m.y_step = {all * pixels, inner ? 1 : pixels, {0, 0, inner ? all : 1}};
  for (int i = kSpatial - 1; i-- > 0;) {
    m.w_step.at[i] = m.w_step.at[i + 1] * m.filter[i + 1];
    m.y_step.at[i] = m.y_step.at[i + 1] * m.out[i + 1];
  }
  const double work = static_cast<double>(all * words);
  TILEKILN_TRY(launch_stage(call, choice, m, all, 8 * work, 0, [&](int64_t unit, void*) {
    char* const to = filters.as<char>() + unit * words * size;
    size == 4 ? merge_filters(c, m, unit, inner, reinterpret_cast<uint32_t*>(to))
              : merge_filters(c, m, unit, inner, reinterpret_cast<uint16_t*>(to));
  }));
  TILEKILN_TRY(conv::launch_forward(call, choice, m));
  const i64 rows = c.batch * c.out[0] * c.out[1];
  return launch_stage(call, choice, m, rows, static_cast<double>(rows * c.out[2] * all), 0, [&](int64_t unit, void*) {
    size == 4 ? part_row<uint32_t>(c, m, unit) : part_row<uint16_t>(c, m, unit);
  });
}

}  // namespace tilekiln::op::conv_bwd_data
