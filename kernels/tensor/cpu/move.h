// SPDX-License-Identifier: MIT
// Blocks of a Move: copied row by row, or turned tile by tile. Bits move, so every element type of a size is one.
#pragma once

#include "kernels/tensor/cpu/tile.h"
#include "kernels/tensor/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

typedef unsigned char line __attribute__((vector_size(64), aligned(1), may_alias));

// n bytes, in pieces that end with the row: the last one may lie over the one before it.
// Long ones by libc, whose string instructions read nothing of what they write: 1.1 to 1.25 times as fast within L2 and L3.
TILEKILN_INLINE void copy_row(char* to, const char* from, long long n) {
  if (n >= 4096) return (void)__builtin_memcpy(to, from, n);
  if (n >= 64) {
    for (long long i = 0; i < n - 64; i += 64) *(line*)(to + i) = *(const line*)(from + i);
    *(line*)(to + n - 64) = *(const line*)(from + n - 64);
    return;
  }
  const auto ends = [&](auto word) __attribute__((always_inline)) {
    decltype(word) first, last;
    __builtin_memcpy(&first, from, sizeof word);
    __builtin_memcpy(&last, from + n - sizeof word, sizeof word);
    __builtin_memcpy(to, &first, sizeof word);
    __builtin_memcpy(to + n - sizeof word, &last, sizeof word);
  };
  typedef unsigned char half __attribute__((vector_size(32)));
  typedef unsigned char quarter __attribute__((vector_size(16)));
  if (n >= 32)
    ends(half{});
  else if (n >= 16)
    ends(quarter{});
  else if (n >= 8)
    ends(0ull);
  else if (n >= 4)
    ends(0u);
  else if (n >= 2)
    ends((unsigned short)0);
  else
    *to = *from;
}

// Moves a row around the caches, for rows of at least two lines.
TILEKILN_INLINE void stream_row(char* to, const char* from, long long n) {
#if defined(__SSE2__)
  const long long head = -(long long)to & 63;
  copy_row(to, from, 64);
  to += head, from += head, n -= head;
  for (; n >= 64; n -= 64, to += 64, from += 64) TILEKILN_UNROLL(4)
  for (int i = 0; i < 64; i += 16) _mm_stream_si128((__m128i*)(to + i), _mm_loadu_si128((const __m128i*)(from + i)));
  if (n > 0) copy_row(to + n - 64, from + n - 64, 64);
#else
  copy_row(to, from, n);
#endif
}

enum class Lines { no, kept, streamed };  // tiles of whole cache lines, and whether y goes around the caches

// A block of at least N rows and N columns, by tiles of N x N. The last ones lie over those before them.
template <class E, int N, Lines kLines = Lines::no>
TILEKILN_INLINE void turn_block(const tensor::Move& a, const E* x, E* y, long long rows, long long columns) {
  for (long long r = 0; r < rows; r += N) {
    r = r <= rows - N ? r : rows - N;
    for (long long c = 0; c < columns; c += N) {
      c = c <= columns - N ? c : columns - N;
      if constexpr (kLines == Lines::no)
        turn_tile<E, N>(x + r + c * a.column_x, a.column_x, y + r * a.row_y + c, a.row_y);
      else
        turn_lines<E, kLines == Lines::streamed>(x + r + c * a.column_x, a.column_x, y + r * a.row_y + c, a.row_y);
    }
  }
}

// Rows [0, rows) and columns [0, columns) of a block.
template <class E> TILEKILN_INLINE void block(const tensor::Move& a, const E* x, E* y, long long rows,
                                              long long columns) {
  if (a.way == int(tensor::Way::rows)) {
    for (long long r = 0; r < rows; ++r) {
      char* to = (char*)(y + r * a.row_y);
      const char* from = (const char*)(x + r * a.row_x);
      if (a.streaming && columns * (long long)sizeof(E) >= 128)
        stream_row(to, from, columns * (long long)sizeof(E));
      else
        copy_row(to, from, columns * (long long)sizeof(E));
    }
    return;
  }
  constexpr int kTile = tile_side<E>();
  if (a.way == int(tensor::Way::tiles)) {
    const long long least = rows < columns ? rows : columns;
    constexpr int kSide = kLineSide<E>;
    if (least >= kSide && a.streaming) return turn_block<E, kSide, Lines::streamed>(a, x, y, rows, columns);
    if (least >= kSide) return turn_block<E, kSide, Lines::kept>(a, x, y, rows, columns);
    if (least >= kTile) return turn_block<E, kTile>(a, x, y, rows, columns);
    if constexpr (kTile > 8)
      if (least >= 8) return turn_block<E, 8>(a, x, y, rows, columns);
    if constexpr (kTile > 4)
      if (least >= 4) return turn_block<E, 4>(a, x, y, rows, columns);
  }
  for (long long r = 0; r < rows; ++r)
    for (long long c = 0; c < columns; ++c) y[r * a.row_y + c * a.column_y] = x[r * a.row_x + c * a.column_x];
}

// x and y where a plane begins.
struct Planes {
  const tensor::Move& a;
  long long at[tensor::kOuter], x, y;

  TILEKILN_INLINE Planes(const tensor::Move& move, long long plane) : a(move), at{}, x(0), y(0) {
    for (int i = tensor::kOuter - 1; i >= 0 && plane > 0; --i) {
      at[i] = plane % a.outer[i];
      plane /= a.outer[i];
      x += at[i] * a.outer_x[i];
      y += at[i] * a.outer_y[i];
    }
  }
  TILEKILN_INLINE void next() {
    for (int i = tensor::kOuter - 1; i >= 0; --i) {
      x += a.outer_x[i];
      y += a.outer_y[i];
      if (++at[i] < a.outer[i]) return;
      at[i] = 0;
      x -= a.outer[i] * a.outer_x[i];
      y -= a.outer[i] * a.outer_y[i];
    }
  }
};

template <class E> void move(const tensor::Move& a, long long first, long long last) {
  const E* x = (const E*)a.x;
  E* y = (E*)a.y;
  const long long across = (a.columns + a.column_block - 1) / a.column_block;
  const long long inside = across * ((a.rows + a.row_block - 1) / a.row_block);
  if (inside == 1) {
    const long long end = last * a.planes < a.all_planes ? last * a.planes : a.all_planes;
    Planes at(a, first * a.planes);
    for (long long plane = first * a.planes; plane < end; ++plane, at.next())
      block<E>(a, x + at.x, y + at.y, a.rows, a.columns);
  } else {
    for (long long unit = first; unit < last; ++unit) {
      const Planes at(a, unit / inside);
      const long long r = unit % inside / across * a.row_block, c = unit % inside % across * a.column_block;
      const long long rows = a.rows - r < a.row_block ? a.rows - r : a.row_block;
      const long long columns = a.columns - c < a.column_block ? a.columns - c : a.column_block;
      block<E>(a, x + at.x + r * a.row_x + c * a.column_x, y + at.y + r * a.row_y + c * a.column_y, rows, columns);
    }
  }
#if defined(__SSE2__)
  if (a.streaming) __builtin_ia32_sfence();
#endif
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
