// SPDX-License-Identifier: MIT
// A tile of images as vectors of channels, [plane][row][column][lane] in fp32, padded: every tap of its pixels is there.
#pragma once

#include "kernels/backends/cpu/load.h"
#include "kernels/conv/cpu/gather.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

TILEKILN_INLINE float widened(float x) { return x; }
TILEKILN_INLINE float widened(signed char x) { return x; }
template <class T> TILEKILN_INLINE float widened(T x) { return core::widen(x); }

// A vector of numbers, or of the first n and zeros.
template <class T> TILEKILN_INLINE vf wide(const T* p) { return widen(p); }
template <class T> TILEKILN_INLINE vf wide_some(const T* p, int n) { return widen_some(p, n); }
TILEKILN_INLINE vf wide(const signed char* p) {
  using Bytes [[gnu::vector_size(kLanes)]] = signed char;
  using Floats [[gnu::vector_size(kLanes * sizeof(float))]] = float;
  Bytes bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  const Floats floats = __builtin_convertvector(bytes, Floats);
  vf made;
  __builtin_memcpy(&made, &floats, sizeof made);
  return made;
}
TILEKILN_INLINE vf wide_some(const signed char* p, int n) {
  alignas(64) signed char row[kLanes] = {};
  for (int i = 0; i < n; ++i) row[i] = p[i];
  return wide(row);
}

// Pixels of a unit: rows of a plane of an image, all of them or some of their columns.
struct TilePlace {
  Pixel pixel;
  i64 rows, columns;
  TilePlace() = default;
  TilePlace(const Convolution& c, i64 unit) {
    const i64 down = (c.out[1] + c.tile - 1) / c.tile, across = (c.out[2] + c.some - 1) / c.some;
    pixel.at[2] = unit % across * c.some, unit /= across;
    pixel.at[1] = unit % down * c.tile, unit /= down;
    pixel.at[0] = unit % c.out[0], pixel.image = unit / c.out[0];
    rows = c.out[1] - pixel.at[1] < c.tile ? c.out[1] - pixel.at[1] : c.tile;
    columns = c.out[2] - pixel.at[2] < c.some ? c.out[2] - pixel.at[2] : c.some;
  }
};

// First place in x that a dimension of a tile reads, less that of its first output and tap; and how far taps reach.
TILEKILN_INLINE i64 lowest(const Convolution& c, int i) {
  return c.tap[i] < 0 && c.filter[i] > 0 ? (c.filter[i] - 1) * c.tap[i] : 0;
}
TILEKILN_INLINE i64 reach(const Convolution& c, int i) {
  return c.filter[i] > 0 ? (c.filter[i] - 1) * (c.tap[i] < 0 ? -c.tap[i] : c.tap[i]) : 0;
}

// The taps of a filter over such a tile, in floats but for step.
struct Taps {
  i64 planes, rows, columns;  // counts
  i64 plane, row, column;     // from tap to tap
  i64 line, first;            // from row to row; of the first pixel's first tap
  i64 step;                   // vectors from pixel to pixel
  Taps(const Convolution& c, const TilePlace& place) {
    const i64 width = (place.columns - 1) * c.step[2] + reach(c, 2) + 1,
              height = (place.rows - 1) * c.step[1] + reach(c, 1) + 1;
    planes = c.filter[0], rows = c.filter[1], columns = c.filter[2];
    line = width * kLanes, plane = height * line, row = c.tap[1] * line, column = c.tap[2] * kLanes;
    first = -lowest(c, 1) * line - lowest(c, 2) * kLanes;
    step = c.step[2];
  }
};

// Vectors of `lanes` channels from that of output k on, of which each channel has `outputs`.
template <class T>
void fill_lanes(const Convolution& c, const T* x, const conv::Steps& s, const TilePlace& place, i64 k, i64 outputs,
                i64 lanes, float* to) {
  const Taps taps(c, place);
  const i64 width = taps.line / kLanes, height = taps.plane / taps.line;
  const i64 top = place.pixel.at[1] * c.step[1] + c.start[1] + lowest(c, 1),
            left = place.pixel.at[2] * c.step[2] + c.start[2] + lowest(c, 2);
  const Range across = range_inside(left, 1, c.in[2], width);
  const bool channels_lie = outputs == 1 && s.channel == 1, pixels_lie = outputs == 1 && s.at[2] == 1;
  for (i64 a = 0; a < taps.planes; ++a) {
    const i64 depth = c.start[0] + place.pixel.at[0] * c.step[0] + a * c.tap[0];
    for (i64 i = 0; i < height; ++i, to += taps.line) {
      if (!inside(c, 0, depth) || !inside(c, 1, top + i) || across.low == across.high) {
        put_zeros(to, taps.line);
        continue;
      }
      put_zeros(to, across.low * kLanes);
      put_zeros(to + across.high * kLanes, (width - across.high) * kLanes);
      const T* const line = x + place.pixel.image * s.batch + depth * s.at[0] + (top + i) * s.at[1] + left * s.at[2] +
                            k / outputs * s.channel;
      if (channels_lie) {
        if (lanes == kLanes)
          for (i64 j = across.low; j < across.high; ++j) store(to + j * kLanes, wide(line + j * s.at[2]));
        else
          for (i64 j = across.low; j < across.high; ++j)
            store(to + j * kLanes, wide_some(line + j * s.at[2], (int)lanes));
        continue;
      }
      if (pixels_lie) {
        for (i64 j = across.low; j < across.high; j += kLanes) {
          const i64 some = across.high - j < kLanes ? across.high - j : kLanes;
          vf r[kLanes];
          if (some == kLanes && lanes == kLanes) {
            TILEKILN_UNROLL(16) for (int n = 0; n < kLanes; ++n) r[n] = wide(line + j + n * s.channel);
          } else {
            TILEKILN_UNROLL(1)
            for (int n = 0; n < kLanes; ++n) r[n] = n < lanes ? wide_some(line + j + n * s.channel, (int)some) : zero();
          }
          transpose(r);
          if (some == kLanes) {
            TILEKILN_UNROLL(16) for (int n = 0; n < kLanes; ++n) store(to + (j + n) * kLanes, r[n]);
          } else {
            TILEKILN_UNROLL(1) for (int n = 0; n < some; ++n) store(to + (j + n) * kLanes, r[n]);
          }
        }
        continue;
      }
      for (i64 j = across.low; j < across.high; ++j) {
        for (i64 n = 0; n < kLanes; ++n)
          to[j * kLanes + n] =
              n < lanes ? widened(line[j * s.at[2] + ((k + n) / outputs - k / outputs) * s.channel]) : 0;
      }
    }
  }
}
inline void fill_channels(const Convolution& c, const char* x, const conv::Steps& s, const TilePlace& place, i64 k,
                          i64 outputs, i64 lanes, float* to) {
  switch (c.dtype) {
    case matrix::Dtype::fp16: return fill_lanes(c, (const fp16*)x, s, place, k, outputs, lanes, to);
    case matrix::Dtype::bf16: return fill_lanes(c, (const bf16*)x, s, place, k, outputs, lanes, to);
    case matrix::Dtype::int8: return fill_lanes(c, (const signed char*)x, s, place, k, outputs, lanes, to);
    default: return fill_lanes(c, (const float*)x, s, place, k, outputs, lanes, to);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
