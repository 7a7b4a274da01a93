// SPDX-License-Identifier: MIT
// Tiles of (tokens, channels) in fp32, whatever lies side by side in memory: lanes run along channels in all of them.
#pragma once

#include "kernels/backends/cpu/load.h"
#include "kernels/linear_attention/conv1d.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using linear_attention::Conv1d;
using linear_attention::Sequences;

constexpr int kGroup = linear_attention::kConvGradients;  // channels of a tile
struct Channels { alignas(64) float lane[kGroup]; };

template <class T> TILEKILN_INLINE T* element(const Sequences& of, long long token, int channel) {
  return (T*)of.data + token * of.token + channel * of.channel;
}
template <class T> TILEKILN_INLINE Sequences moved(Sequences of, long long batch, long long token) {
  if (of.data) of.data += (batch * of.batch + token * of.token) * (long long)sizeof(T);
  return of;
}

// Few tokens that lie channel after channel, as states and weights do: they are converted as one row.
constexpr int kFewTokens = 4;
TILEKILN_INLINE bool few_in_a_row(const Sequences& of, int tokens) {
  return of.token == 1 && tokens <= kFewTokens && of.channel == tokens;
}

// Reads some tokens of `channels` channels, at most kGroup, from `token` and `channel` on. Channels that do not exist are 0.
template <class T>
void read_tile(const Sequences& of, long long token, int channel, int tokens, int channels, Channels* to) {
  const T* p = element<const T>(of, token, channel);
  if (of.channel == 1) {
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < kGroup; c += kLanes)
        store(to[t].lane + c, c < channels ? widen_some(p + t * of.token + c, channels - c) : zero());
    }
  } else if (few_in_a_row(of, tokens)) {
    alignas(64) float row[kGroup * kFewTokens];
    const int count = channels * tokens;
    for (int i = 0; i < kGroup * tokens; i += kLanes) store(row + i, i < count ? widen_some(p + i, count - i) : zero());
    for (int c = 0; c < kGroup; ++c) {
      for (int t = 0; t < tokens; ++t) to[t].lane[c] = row[c * tokens + t];
    }
  } else if (of.token == 1) {
    for (int c = 0; c < kGroup; c += kLanes) {
      const T* lane = p + c * of.channel;
      const bool whole = c + kLanes <= channels;
      for (int t = 0; t < tokens; t += kLanes) {
        vf r[kLanes];
        if (whole && t + kLanes <= tokens) {
          TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) r[i] = widen(lane + i * of.channel + t);
          transpose(r);
          TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) store(to[t + i].lane + c, r[i]);
          continue;
        }
        for (int i = 0; i < kLanes; ++i)
          r[i] = c + i < channels ? widen_some(lane + i * of.channel + t, tokens - t) : zero();
        transpose(r);
        for (int i = 0; i < kLanes && t + i < tokens; ++i) store(to[t + i].lane + c, r[i]);
      }
    }
  } else {
    for (int t = 0; t < tokens; ++t) {
      __builtin_memset(to + t, 0, sizeof *to);
      for (int c = 0; c < channels; ++c)
        narrow_some(to[t].lane + c, widen_some(p + t * of.token + c * of.channel, 1), 1);
    }
  }
}

// Writes them the other way round; channels that do not exist are not written.
template <class T>
void write_tile(const Sequences& of, long long token, int channel, int tokens, int channels, const Channels* from) {
  T* p = element<T>(of, token, channel);
  if (of.channel == 1) {
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < channels; c += kLanes)
        narrow_some(p + t * of.token + c, load(from[t].lane + c), channels - c);
    }
  } else if (few_in_a_row(of, tokens)) {
    alignas(64) float row[kGroup * kFewTokens];
    const int count = channels * tokens;
    for (int c = 0; c < kGroup; ++c) {
      for (int t = 0; t < tokens; ++t) row[c * tokens + t] = from[t].lane[c];
    }
    for (int i = 0; i < count; i += kLanes) narrow_some(p + i, load(row + i), count - i);
  } else if (of.token == 1) {
    for (int c = 0; c < channels; c += kLanes) {
      T* lane = p + c * of.channel;
      const bool whole = c + kLanes <= channels;
      for (int t = 0; t < tokens; t += kLanes) {
        vf r[kLanes];
        if (whole && t + kLanes <= tokens) {
          TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) r[i] = load(from[t + i].lane + c);
          transpose(r);
          TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) narrow(lane + i * of.channel + t, r[i]);
          continue;
        }
        for (int i = 0; i < kLanes; ++i) r[i] = t + i < tokens ? load(from[t + i].lane + c) : zero();
        transpose(r);
        for (int i = 0; i < kLanes && c + i < channels; ++i) narrow_some(lane + i * of.channel + t, r[i], tokens - t);
      }
    }
  } else {
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < channels; ++c) narrow_some(p + t * of.token + c * of.channel, broadcast(from[t].lane[c]), 1);
    }
  }
}

// One sequence of a call: it is batch 0 of its arrays.
template <class T> Conv1d sequence_of(const Conv1d& whole, long long number) {
  Conv1d a = whole;
  const long long first = a.starts ? a.starts[number] : 0;
  const long long batch = a.starts ? 0 : number;
  a.x = moved<T>(a.x, batch, first), a.y = moved<T>(a.y, batch, first);
  a.past = moved<T>(a.past, number, 0), a.last = moved<T>(a.last, number, 0);
  if (a.starts) a.tokens = a.starts[number + 1] - first;
  return a;
}

// Inputs of the convolution from token `first` on, which may lie in the past: of the state before the sequence, or 0 without one.
template <class T>
void read_inputs(const Conv1d& a, long long first, int tokens, int channel, int channels, Channels* to) {
  const int past = first >= 0 ? 0 : -first < tokens ? int(-first) : tokens;
  if (past > 0 && a.past.data) read_tile<T>(a.past, first + a.width - 1, channel, past, channels, to);
  if (past > 0 && !a.past.data) __builtin_memset(to, 0, past * sizeof *to);
  if (tokens > past) read_tile<T>(a.x, first + past, channel, tokens - past, channels, to + past);
}

// Tokens before a block that its inputs begin with: side by side in memory they are read in whole vectors.
TILEKILN_INLINE int lead_of(const Conv1d& a, long long first) {
  return first > 0 && a.x.token == 1 ? kLanes : a.width - 1;
}

// The weights of some channels, a tap a row, and the bias; 0 without one.
template <class T> void read_taps(const Conv1d& a, int channel, int channels, Channels* weight, Channels& bias) {
  read_tile<T>(a.weight, 0, channel, a.width, channels, weight);
  const Sequences biases = {(char*)a.bias, 0, 0, 1};
  if (a.bias)
    read_tile<T>(biases, 0, channel, 1, channels, &bias);
  else
    __builtin_memset(&bias, 0, sizeof bias);
}

// f(the first channel, how many of a tile) over the channels [first, last).
template <class F> TILEKILN_INLINE void groups_of_channels(int first, int last, F&& f) {
  for (int c = first; c < last; c += kGroup) f(c, last - c < kGroup ? last - c : kGroup);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
