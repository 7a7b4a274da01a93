// SPDX-License-Identifier: MIT
// A weight as rows of words, [group][output][word], or as panels of its outputs for each chunk, [group][chunk][panel][word][lane].
#pragma once

#include "kernels/conv/cpu/gather.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr i64 kPanelOutputs = matrix::kPanelLanes;
TILEKILN_INLINE i64 panels_of(const Convolution& c) { return (c.outputs + kPanelOutputs - 1) / kPanelOutputs; }
// Elements of a word of panels; 0: int8, whose weights are rows.
TILEKILN_INLINE int panel_word(const Convolution& c) {
  return c.dtype == matrix::Dtype::int8 ? 0 : c.dtype == matrix::Dtype::bf16 ? 2 : 1;
}

// Elements of all chunks before `number`, of a panel: chunks are whole words.
inline i64 chunk_start(const Convolution& c, i64 number, int word) {
  i64 start = 0;
  for (i64 i = 0; i < number; ++i) start += (words_of(c, i).count() + word - 1) / word * word;
  return start;
}

template <class T> TILEKILN_INLINE i64 weight_at(const Convolution& c, i64 t, i64 channel) {
  const i64 a = t / c.filter[2] / c.filter[1], b = t / c.filter[2] % c.filter[1], d = t % c.filter[2];
  return channel * c.w_step.channel + a * c.w_step.at[0] + b * c.w_step.at[1] + d * c.w_step.at[2];
}

template <class T, class F> TILEKILN_INLINE void each_word(const Convolution& c, const Words& words, F&& f) {
  i64 r = 0;
  if (c.channels_inner) {
    for (i64 t = words.t0; t < words.t1; ++t)
      for (i64 k = words.c0; k < words.c1; ++k) f(r++, weight_at<T>(c, t, k));
    return;
  }
  for (i64 k = words.c0; k < words.c1; ++k)
    for (i64 t = words.t0; t < words.t1; ++t) f(r++, weight_at<T>(c, t, k));
}

// A unit is kPanelOutputs outputs of a group.
template <class T> void pack_weight(const Convolution& c, i64 unit, void* made) {
  const i64 panels = panels_of(c), group = unit / panels, panel = unit % panels, n0 = panel * kPanelOutputs;
  const i64 some = c.outputs - n0 < kPanelOutputs ? c.outputs - n0 : kPanelOutputs;
  const T* const w = (const T*)c.w + group * c.w_group + n0 * c.w_step.batch;
  const int word = panel_word(c);
  if (c.lanes_along_pixels || word == 0) {
    const Words all = {0, taps_of(c), 0, c.channels};
    for (i64 n = 0; n < some; ++n) {
      T* const row = (T*)made + group * c.rows_group + (n0 + n) * c.rows_step;
      each_word<T>(c, all, [&](i64 r, i64 at) { row[r] = w[n * c.w_step.batch + at]; });
    }
    return;
  }
  const i64 all = chunk_start(c, c.chunks, word);
  T* const of_group = (T*)made + group * panels * all * kPanelOutputs;
  for (i64 i = 0; i < c.chunks; ++i) {
    const Words words = words_of(c, i);
    const i64 start = chunk_start(c, i, word), count = words.count(), whole = (count + word - 1) / word * word;
    T* const to = of_group + (panels * start + panel * whole) * kPanelOutputs;
    each_word<T>(c, words, [&](i64 r, i64 at) {
      T* const row = to + r / word * word * kPanelOutputs + r % word;
      for (i64 n = 0; n < some; ++n) row[n * word] = w[n * c.w_step.batch + at];
      for (i64 n = some; n < kPanelOutputs; ++n) row[n * word] = T{};
    });
    if (whole > count)
      for (i64 n = 0; n < kPanelOutputs; ++n) to[(count / word * kPanelOutputs + n) * word + count % word] = T{};
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
