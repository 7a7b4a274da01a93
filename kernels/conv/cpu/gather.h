// SPDX-License-Identifier: MIT
// Taps of a tile of pixels, gathered in cache: rows of words for each pixel, or lanes of pixels for each word. A word is an element of
// a channel and a tap.
#pragma once

#include "kernels/backends/cpu/load.h"
#include "kernels/conv/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using conv::Convolution;
using i64 = long long;

// The words of a chunk: taps [t0, t1) of channels [c0, c1).
struct Words {
  i64 t0, t1, c0, c1;
  i64 count() const { return (t1 - t0) * (c1 - c0); }
};
TILEKILN_INLINE i64 taps_of(const Convolution& c) { return c.filter[0] * c.filter[1] * c.filter[2]; }
// Chunks in the order of words.
inline Words words_of(const Convolution& c, i64 number) {
  const i64 taps = taps_of(c), outer = c.channels_inner ? taps : c.channels,
            inner = c.channels_inner ? c.channels : taps;
  const i64 across = (inner + c.chunk.inner - 1) / c.chunk.inner;
  const i64 o = number / across * c.chunk.outer, i = number % across * c.chunk.inner;
  const i64 o1 = o + c.chunk.outer < outer ? o + c.chunk.outer : outer;
  const i64 i1 = i + c.chunk.inner < inner ? i + c.chunk.inner : inner;
  return c.channels_inner ? Words{o, o1, i, i1} : Words{i, i1, o, o1};
}

// f(r, place) for words in order, `place` in elements from that of the first channel's first tap.
template <class F> TILEKILN_INLINE void each_word(const Convolution& c, const Words& words, F&& f) {
  const i64 channels = words.c1 - words.c0, taps = words.t1 - words.t0;
  const i64 by_tap = c.channels_inner ? channels : 1, by_channel = c.channels_inner ? 1 : taps;
  i64 d = words.t0 % c.filter[2], b = words.t0 / c.filter[2] % c.filter[1], a = words.t0 / c.filter[2] / c.filter[1];
  for (i64 t = 0; t < taps; ++t) {
    const i64 tap = a * c.w_step.at[0] + b * c.w_step.at[1] + d * c.w_step.at[2];
    for (i64 k = 0; k < channels; ++k) f(t * by_tap + k * by_channel, tap + (words.c0 + k) * c.w_step.channel);
    if (++d == c.filter[2]) d = 0, ++b;
    if (b == c.filter[1]) b = 0, ++a;
  }
}

// A pixel of y, by its image and place.
struct Pixel {
  i64 image, at[3];
  Pixel() = default;
  Pixel(const Convolution& c, i64 number) {
    at[2] = number % c.out[2], number /= c.out[2];
    at[1] = number % c.out[1], number /= c.out[1];
    at[0] = number % c.out[0], image = number / c.out[0];
  }
  // Moves on to the first pixel of the next row.
  TILEKILN_INLINE void next_row(const Convolution& c) {
    at[2] = 0;
    if (++at[1] == c.out[1]) at[1] = 0, ++at[0];
    if (at[0] == c.out[0]) at[0] = 0, ++image;
  }
  TILEKILN_INLINE void next(const Convolution& c) {
    if (++at[2] == c.out[2]) next_row(c);
  }
  TILEKILN_INLINE i64 in(const conv::Steps& steps) const {
    return image * steps.batch + at[0] * steps.at[0] + at[1] * steps.at[1] + at[2] * steps.at[2];
  }
};

TILEKILN_INLINE i64 place(const Convolution& c, int i, i64 o, i64 tap) {
  return o * c.step[i] + tap * c.tap[i] + c.start[i];
}
TILEKILN_INLINE bool inside(const Convolution& c, int i, i64 at) { return at >= 0 && at < c.in[i]; }

// n numbers j from 0 on: those with 0 <= first + j step < length are [low, high).
struct Range { i64 low, high; };
TILEKILN_INLINE Range range_inside(i64 first, i64 step, i64 length, i64 n) {
  const i64 last = first + (n - 1) * step;
  if (first >= 0 && first < length && last >= 0 && last < length) return {0, n};  // without a division
  if (step < 0) {                                                                 // as from the other end
    const Range r = range_inside(last, -step, length, n);
    return {n - r.high, n - r.low};
  }
  i64 low = first >= 0 ? 0 : (-first + step - 1) / step,
      high = length <= first ? 0 : (length - first + step - 1) / step;
  if (low > n) low = n;
  if (high > n) high = n;
  return {low, high < low ? low : high};
}

// Bytes by pieces of a power of two, the last of which may lie over the one before it. Loops of elements take 3 times as long.
template <class Piece> TILEKILN_INLINE void copy_piece(char* to, const char* from, i64 bytes) {
  Piece first, last;
  __builtin_memcpy(&first, from, sizeof first), __builtin_memcpy(&last, from + bytes - sizeof last, sizeof last);
  __builtin_memcpy(to, &first, sizeof first), __builtin_memcpy(to + bytes - sizeof last, &last, sizeof last);
}
struct Bytes32 { float part[8]; };
struct Bytes16 { float part[4]; };
TILEKILN_INLINE void copy_bytes(char* to, const char* from, i64 bytes) {
  if (bytes >= 64) {
    for (i64 i = 0; i + 64 < bytes; i += 64) __builtin_memcpy(to + i, from + i, 64);
    __builtin_memcpy(to + bytes - 64, from + bytes - 64, 64);
  } else if (bytes >= 32) {
    copy_piece<Bytes32>(to, from, bytes);
  } else if (bytes >= 16) {
    copy_piece<Bytes16>(to, from, bytes);
  } else if (bytes >= 8) {
    copy_piece<uint64_t>(to, from, bytes);
  } else if (bytes >= 4) {
    copy_piece<uint32_t>(to, from, bytes);
  } else {
    for (i64 i = 0; i < bytes; ++i) to[i] = from[i];
  }
}
template <class T> TILEKILN_INLINE void put_zeros(T* to, i64 n) {
  if (n > 0) __builtin_memset(to, 0, n * sizeof *to);
}
template <class T> TILEKILN_INLINE void put_words(T* to, vf lanes) {
  alignas(64) uint32_t wide[kLanes];
  store((float*)wide, lanes);
  if constexpr (sizeof(T) == sizeof(float))
    __builtin_memcpy(to, wide, sizeof wide);
  else
    for (int n = 0; n < kLanes; ++n) to[n] = (T)wide[n];
}

template <class T> TILEKILN_INLINE void put_even(T* to, const T* from) {
  vf even, odd;
  even_odd((const float*)from, even, odd);
  store_unaligned((float*)to, even);
}
template <class T> TILEKILN_INLINE void put_row(T* to, const T* from, i64 step, i64 n) {
  if (n <= 0) return;
  if (step == 1) return copy_bytes((char*)to, (const char*)from, n * (i64)sizeof *to);
  if constexpr (sizeof(T) == sizeof(float)) {
    if (step == 2) {
      i64 i = 0;
      for (; i + kLanes < n; i += kLanes) put_even(to + i, from + 2 * i);
      alignas(64) float rest[2 * kLanes] = {};
      const int left = int(2 * (n - i) - 1);  // nothing behind the last one
      store(rest, widen_some((const float*)from + 2 * i, left));
      const float* const second = (const float*)from + 2 * i + kLanes;
      store(rest + kLanes, left > kLanes ? widen_some(second, left - kLanes) : broadcast(0.f));
      vf even, odd;
      even_odd(rest, even, odd);
      return narrow_some((float*)to + i, even, int(n - i));
    }
  }
  if constexpr (sizeof(T) == sizeof(float)) {
    if (step == 4) {  // patches of 4 x 4
      i64 i = 0;
      for (; i + kLanes < n; i += kLanes) {
        alignas(64) float twos[2 * kLanes];
        put_even(twos, (const float*)from + 4 * i), put_even(twos + kLanes, (const float*)from + 4 * i + 2 * kLanes);
        put_even((float*)to + i, twos);
      }
      for (; i < n; ++i) to[i] = from[4 * i];
      return;
    }
  }
  if constexpr (sizeof(T) == 2) {
    if (step == 2) {  // words whose other half goes
      for (i64 i = 0; i + 1 < n; ++i) {
        uint32_t both;
        __builtin_memcpy(&both, from + 2 * i, sizeof both);
        to[i] = T(both);
      }
      to[n - 1] = from[2 * (n - 1)];
      return;
    }
  }
  for (i64 i = 0; i < n; ++i) to[i] = from[i * step];
}

// Rows of words by columns: f(i, lanes) has word i of up to kLanes rows, `step` elements apart, that lie side by side in each.
template <class T, class F> TILEKILN_INLINE void turn_rows(const T* from, i64 step, i64 rows, i64 count, F&& f) {
  for (i64 i = 0; i < count; i += kLanes) {
    const i64 some = count - i < kLanes ? count - i : kLanes;
    vf r[kLanes];
    if constexpr (sizeof(T) == sizeof(float)) {
      if (some == kLanes && rows >= kLanes) {
        TILEKILN_UNROLL(16) for (int n = 0; n < kLanes; ++n) r[n] = load_unaligned((const float*)from + n * step + i);
      } else {
        TILEKILN_UNROLL(1)
        for (int n = 0; n < kLanes; ++n)
          r[n] = n < rows ? widen_some((const float*)from + n * step + i, (int)some) : zero();
      }
    } else {
      TILEKILN_UNROLL(1) for (int n = 0; n < kLanes; ++n) {
        alignas(64) uint32_t wide[kLanes] = {};
        const T* const row = from + n * step + i;
        if (n < rows && some == kLanes)
          for (int j = 0; j < kLanes; ++j) wide[j] = row[j];
        else if (n < rows)
          for (i64 j = 0; j < some; ++j) wide[j] = row[j];
        r[n] = load((const float*)wide);
      }
    }
    transpose(r);
    if (some == kLanes) {
      TILEKILN_UNROLL(16) for (int n = 0; n < kLanes; ++n) f(i + n, r[n]);
    } else {
      TILEKILN_UNROLL(1) for (int n = 0; n < some; ++n) f(i + n, r[n]);
    }
  }
}
// Pixels of a row of y, of a tile, whose lanes lie together.
struct Segment {
  Pixel at;
  i64 lane, count;
};

// f(segment) for pixels from `first` on, of which those up to `pixels` exist; lanes are cut at multiples of `whole`.
template <class F> TILEKILN_INLINE void segments(const Convolution& c, i64 first, i64 pixels, i64 whole, F&& f) {
  Pixel at(c, first);
  for (i64 lane = 0; lane < pixels;) {
    i64 some = c.out[2] - at.at[2];
    if (some > pixels - lane) some = pixels - lane;
    if (some > whole - lane % whole) some = whole - lane % whole;
    f(Segment{at, lane, some});
    lane += some, at.at[2] += some;
    if (at.at[2] == c.out[2]) at.next_row(c);
  }
}

// Taps [d, d + some) of a row of a filter, of one pixel: those from `from` on in `line`, a row of x.
template <class T>
void gather_taps(const Convolution& c, const T* line, bool there, i64 from, i64 some, i64 channels, i64 by_tap,
                 i64 by_channel, T* to) {
  const conv::Steps& s = c.x_step;
  const Range r = there ? range_inside(from, c.tap[2], c.in[2], some) : Range{0, 0};
  if (by_channel != 1 && sizeof(T) == sizeof(float) && s.channel == 1 && some >= kLanes / 2) {
    for (i64 k = 0; k < channels; ++k) {
      put_zeros(to + k * by_channel, r.low);
      put_zeros(to + k * by_channel + r.high, some - r.high);
    }
    for (i64 i = r.low; i < r.high; i += kLanes) {
      const i64 rows = r.high - i < kLanes ? r.high - i : kLanes;
      turn_rows(line + (from + i * c.tap[2]) * s.at[2], c.tap[2] * s.at[2], rows, channels,
                [&](i64 k, vf x) { narrow_some((float*)to + i + k * by_channel, x, (int)rows); });
    }
    return;
  }
  for (i64 i = 0; i < some; ++i) {
    T* const own = to + i * by_tap;
    const T* const pixel = line + (from + i * c.tap[2]) * s.at[2];
    const bool is = i >= r.low && i < r.high;
    if (is && by_channel == 1)
      put_row(own, pixel, s.channel, channels);
    else
      for (i64 k = 0; k < channels; ++k) own[k * by_channel] = is ? pixel[k * s.channel] : T{};
  }
}

// Rows of `row` elements, in the order of words, of pixels from `first` on.
template <class T>
void gather_rows(const Convolution& c, i64 group, i64 first, i64 pixels, const Words& words, T* to, i64 row) {
  const i64 channels = words.c1 - words.c0, taps = words.t1 - words.t0, count = words.count();
  const conv::Steps& s = c.x_step;
  const T* const x = (const T*)c.x + (group * c.channels + words.c0) * s.channel;
  const bool side_by_side = c.channels_inner && s.channel == 1,
             together = c.tap[2] * s.at[2] == channels;  // taps of a row
  const i64 by_tap = c.channels_inner ? channels : 1, by_channel = c.channels_inner ? 1 : taps;
  segments(c, first, pixels, pixels, [&](const Segment& segment) {
    const Pixel& at = segment.at;
    const T* const image = x + at.image * s.batch;
    T* const rows = to + segment.lane * row;
    i64 d = words.t0 % c.filter[2], b = words.t0 / c.filter[2] % c.filter[1], a = words.t0 / c.filter[2] / c.filter[1];
    for (i64 t = 0; t < taps;) {
      const i64 some = taps - t < c.filter[2] - d ? taps - t : c.filter[2] - d;
      const i64 depth = place(c, 0, at.at[0], a), height = place(c, 1, at.at[1], b), from = place(c, 2, at.at[2], d);
      const bool there = inside(c, 0, depth) && inside(c, 1, height);
      const T* const line = image + depth * s.at[0] + height * s.at[1];
      T* own = rows + t * by_tap;
      // Pixels whose taps are all there.
      Range whole = {0, 0};
      if (there && side_by_side) {
        const Range one = range_inside(from, c.step[2], c.in[2], segment.count);
        const Range other = range_inside(from + (some - 1) * c.tap[2], c.step[2], c.in[2], segment.count);
        whole = {one.low > other.low ? one.low : other.low, one.high < other.high ? one.high : other.high};
        if (whole.high < whole.low) whole.high = whole.low;
      }
      const T* pixel = line + (from + whole.low * c.step[2]) * s.at[2];
      const i64 step = c.step[2] * s.at[2], tap = c.tap[2] * s.at[2];
      const i64 copies = together ? 1 : some, bytes = (together ? some : 1) * channels * (i64)sizeof(T);
      for (i64 i = 0; i < whole.low; ++i)
        gather_taps(c, line, there, from + i * c.step[2], some, channels, by_tap, by_channel, own + i * row);
      for (i64 i = whole.low; i < whole.high; ++i, pixel += step) {
        T* const all = own + i * row;
        for (i64 n = 0; n < copies; ++n) copy_bytes((char*)(all + n * by_tap), (const char*)(pixel + n * tap), bytes);
      }
      for (i64 i = whole.high; i < segment.count; ++i)
        gather_taps(c, line, there, from + i * c.step[2], some, channels, by_tap, by_channel, own + i * row);
      t += some, d = 0;
      if (++b == c.filter[1]) b = 0, ++a;
    }
    if (row > count)
      for (i64 i = 0; i < segment.count; ++i) put_zeros(rows + i * row + count, row - count);
  });
}

// Rows of x, of c.wide pixels with zeros where there are none, that the taps of whole rows of y from `first` on meet.
template <class T> void gather_lines(const Convolution& c, i64 group, i64 first, i64 pixels, T* to) {
  const conv::Steps& s = c.x_step;
  const Pixel at(c, first);
  const i64 lines = pixels / c.out[2] + (c.filter[1] - 1) * c.tap[1], line = c.wide * c.channels;
  const T* const x = (const T*)c.x + group * c.channels * s.channel + at.image * s.batch;
  const Range r = range_inside(c.start[2], 1, c.in[2], c.wide);
  for (i64 i = 0; i < lines; ++i, to += line) {
    const i64 height = place(c, 1, at.at[1], 0) + i;
    if (!inside(c, 1, height) || r.low == r.high) {
      put_zeros(to, line);
      continue;
    }
    const T* from = x + height * s.at[1] + (c.start[2] + r.low) * s.at[2];
    put_zeros(to, r.low * c.channels), put_zeros(to + r.high * c.channels, (c.wide - r.high) * c.channels);
    const bool together = s.at[2] == c.channels;
    const i64 copies = together ? 1 : r.high - r.low, each = (together ? r.high - r.low : 1) * c.channels;
    for (i64 j = 0; j < copies; ++j, from += s.at[2])
      copy_bytes((char*)(to + (r.low + j) * c.channels), (const char*)from, each * (i64)sizeof(T));
  }
}

// Lanes of pixels from `first` on, padded to `lanes`, in panels of `whole` lanes, [panel][word][lane]; words as channels_inner says.
template <class T>
void gather_lanes(const Convolution& c, i64 group, i64 first, i64 pixels, i64 lanes, i64 whole, const Words& words,
                  T* to) {
  const i64 channels = words.c1 - words.c0, taps = words.t1 - words.t0, count = words.count();
  const conv::Steps& s = c.x_step;
  const i64 step = c.step[2] * s.at[2];
  const i64 by_channel = (c.channels_inner ? 1 : taps) * whole, by_tap = (c.channels_inner ? channels : 1) * whole;
  const T* const x = (const T*)c.x + (group * c.channels + words.c0) * s.channel;
  segments(c, first, pixels, whole, [&](const Segment& segment) {
    const Pixel& at = segment.at;
    T* const column = to + segment.lane / whole * count * whole + segment.lane % whole;
    i64 i = words.t0 % c.filter[2], j = words.t0 / c.filter[2] % c.filter[1], l = words.t0 / c.filter[2] / c.filter[1];
    for (i64 t = words.t0; t < words.t1; ++t) {
      T* own = column + (t - words.t0) * by_tap;
      const i64 a = place(c, 0, at.at[0], l), b = place(c, 1, at.at[1], j), from = place(c, 2, at.at[2], i);
      if (++i == c.filter[2]) i = 0, ++j;
      if (j == c.filter[1]) j = 0, ++l;
      Range r = range_inside(from, c.step[2], c.in[2], segment.count);
      if (!inside(c, 0, a) || !inside(c, 1, b)) r = {segment.count, segment.count};
      const T* p = x + at.image * s.batch + a * s.at[0] + b * s.at[1] + (from + r.low * c.step[2]) * s.at[2];
      for (i64 k = 0; k < channels; ++k, own += by_channel, p += s.channel) {
        put_zeros(own, r.low);
        put_row(own + r.low, p, step, r.high - r.low);
        put_zeros(own + r.high, segment.count - r.high);
      }
    }
  });
  for (i64 lane = pixels; lane < lanes;) {  // what is missing of the last panel
    const i64 some = whole - lane % whole < lanes - lane ? whole - lane % whole : lanes - lane;
    T* own = to + lane / whole * count * whole + lane % whole;
    for (i64 w = 0; w < count; ++w, own += whole) put_zeros(own, some);
    lane += some;
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
