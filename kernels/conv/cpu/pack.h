// SPDX-License-Identifier: MIT
// A weight as rows of words, [group][output][word], or as panels of its outputs for each chunk, [group][chunk][panel][word][lane].
#pragma once

#include "kernels/conv/cpu/words.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

TILEKILN_INLINE i64 panels_of(const Convolution& c) { return (c.outputs + kPanelOutputs - 1) / kPanelOutputs; }
// Elements of a word of panels; 0: int8 of vectors, whose weights are rows.
TILEKILN_INLINE int panel_word(const Convolution& c) {
  if (c.dtype == matrix::Dtype::int8) return Products::kTiles ? 4 : 0;
  return c.dtype == matrix::Dtype::bf16 ? 2 : 1;
}

// Elements of all chunks before `number`, of a panel: chunks are whole words.
inline i64 chunk_start(const Convolution& c, i64 number, int word) {
  i64 start = 0;
  for (i64 i = 0; i < number; ++i) start += (words_of(c, i).count() + word - 1) / word * word;
  return start;
}

template <class T> TILEKILN_INLINE void put_some(T* to, vf lanes, int n) {
  if constexpr (sizeof(T) == sizeof(float)) return narrow_some((float*)to, lanes, n);
  alignas(64) T row[kLanes];
  put_words(row, lanes);
  for (int i = 0; i < n; ++i) to[i] = row[i];
}

// Lanes to those of word r of a panel, an element of `word` of them.
template <class T> TILEKILN_INLINE void put_lanes(T* panel, i64 r, int word, vf lanes) {
  if constexpr (sizeof(T) == sizeof(float)) {
    store((float*)panel + r * kPanelOutputs, lanes);
  } else if constexpr (sizeof(T) == 1) {
    alignas(64) uint32_t wide[kLanes];
    store((float*)wide, lanes);
    T* const to = panel + r / word * kPanelOutputs * word + r % word;
    for (int n = 0; n < kLanes; ++n) to[n * word] = (T)wide[n];
  } else {
    alignas(64) uint32_t wide[kLanes];
    store((float*)wide, lanes);
    if (word == 1) {
      T* const to = panel + r * kPanelOutputs;
      for (int n = 0; n < kLanes; ++n) to[n] = (T)wide[n];
      return;
    }
    uint32_t* const to = (uint32_t*)(void*)panel + r / 2 * kPanelOutputs;
    uint32_t pairs[kLanes];  // the other half stays
    __builtin_memcpy(pairs, to, sizeof pairs);
    if (r % 2 == 0)
      for (int n = 0; n < kLanes; ++n) pairs[n] = (pairs[n] & 0xffff0000u) | wide[n];
    else
      for (int n = 0; n < kLanes; ++n) pairs[n] = (pairs[n] & 0xffffu) | wide[n] << 16;
    __builtin_memcpy(to, pairs, sizeof pairs);
  }
}

// Words of a chunk of kLanes outputs from `w` on, to lanes of a panel. Filters that lie together are read from one end to the other.
template <class T> void pack_lanes(const Convolution& c, const Words& words, const T* w, i64 rows, T* to, int word) {
  const i64 channels = words.c1 - words.c0, taps = words.t1 - words.t0, all = taps_of(c), step = c.w_step.batch;
  const bool lies = c.filters_lie, inner = c.filters_inner;
  if (rows <= 0) {
    for (i64 r = 0; r < words.count(); ++r) put_lanes(to, r, word, zero());
  } else if (lies && inner == c.channels_inner) {
    const i64 first = inner ? words.t0 * c.channels + words.c0 : words.c0 * all + words.t0;
    const i64 row = inner ? c.channels : all, some = inner ? channels : taps, count = inner ? taps : channels;
    if (some == row)
      turn_rows(w + first, step, rows, some * count, [&](i64 r, vf x) { put_lanes(to, r, word, x); });
    else
      for (i64 i = 0; i < count; ++i)
        turn_rows(w + first + i * row, step, rows, some, [&](i64 r, vf x) { put_lanes(to, i * some + r, word, x); });
  } else if (kGathersWords && lies && taps == all && all <= kMostTaps && sizeof(T) * word == 4 && word > 1 &&
             channels % word == 0 && step % word == 0) {
    turn_filters(w + words.c0 * all, step, rows, all, channels, to);
  } else if (lies && taps == all) {  // taps run faster in the filters, channels in words
    i64 t = 0, k = 0;
    turn_rows(w + words.c0 * all, step, rows, channels * all, [&](i64, vf x) {
      put_lanes(to, t * channels + k, word, x);
      if (++t == all) t = 0, ++k;
    });
  } else {
    each_word(c, words, [&](i64 r, i64 place) {
      T* const row = to + r / word * kPanelOutputs * word + r % word;
      for (i64 n = 0; n < kLanes; ++n) row[n * word] = n < rows ? w[n * step + place] : T{};
    });
  }
}

// A unit is kPanelOutputs outputs of a group.
template <class T> void pack_weight(const Convolution& c, i64 unit, void* made) {
  const i64 panels = panels_of(c), group = unit / panels, panel = unit % panels, n0 = panel * kPanelOutputs;
  const i64 some = c.outputs - n0 < kPanelOutputs ? c.outputs - n0 : kPanelOutputs;
  const T* const w = (const T*)c.w + group * c.w_group + n0 * c.w_step.batch;
  const int word = panel_word(c);
  if (c.lanes_along_pixels || word == 0) {
    T* const rows = (T*)made + group * c.rows_group + n0 * c.rows_step;
    const Words all = {0, taps_of(c), 0, c.channels};
    if (c.filters_lie && c.filters_inner == c.channels_inner) {
      for (i64 n = 0; n < some; ++n) {
        copy_bytes((char*)(rows + n * c.rows_step), (const char*)(w + n * c.w_step.batch), all.count() * sizeof(T));
        put_zeros(rows + n * c.rows_step + all.count(), c.rows_step - all.count());
      }
      return;
    }
    for (i64 n = 0; n < some; ++n) put_zeros(rows + n * c.rows_step + all.count(), c.rows_step - all.count());
    if (c.taps_lie && c.w_step.batch == all.t1 && sizeof(T) > 1 && c.channels_inner) {
      // A gradient's filters: of a channel, the taps of all outputs lie together.
      for (i64 k = 0; k < c.channels; k += kLanes) {
        const int lanes = int(c.channels - k < kLanes ? c.channels - k : kLanes);
        i64 n = 0, t = 0;
        turn_rows(w + k * c.w_step.channel, c.w_step.channel, lanes, some * all.t1, [&](i64, vf x) {
          put_some(rows + n * c.rows_step + t * c.channels + k, x, lanes);
          if (++t == all.t1) t = 0, ++n;
        });
      }
      return;
    }
    if (c.w_step.batch < c.w_step.channel) {  // outputs are nearer than channels: a gradient's
      each_word(c, all, [&](i64 r, i64 at) {
        for (i64 n = 0; n < some; ++n) rows[n * c.rows_step + r] = w[n * c.w_step.batch + at];
      });
      return;
    }
    for (i64 n = 0; n < some; ++n)
      each_word(c, all, [&](i64 r, i64 at) { rows[n * c.rows_step + r] = w[n * c.w_step.batch + at]; });
    return;
  }
  const i64 all = chunk_start(c, c.chunks, word);
  T* const of_group = (T*)made + group * panels * all * kPanelOutputs;
  for (i64 i = 0; i < c.chunks; ++i) {
    const Words words = words_of(c, i);
    const i64 start = chunk_start(c, i, word), count = words.count(), whole = (count + word - 1) / word * word;
    T* const to = of_group + (panels * start + panel * whole) * kPanelOutputs;
    if (Products::kTiles && c.chunks == 1 && c.filters_lie &&
        (c.filters_inner == c.channels_inner || taps_of(c) == 1)) {
      Products::kPackRows<T>((float*)to, w, c.w_step.batch, (int)some, count);
      continue;
    }
    for (i64 n = 0; n < kPanelOutputs; n += kLanes)
      pack_lanes<T>(c, words, w + n * c.w_step.batch, some - n, to + n * word, word);
    if (whole > count)
      for (i64 n = 0; n < kPanelOutputs; ++n) to[(count / word * kPanelOutputs + n) * word + count % word] = T{};
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
