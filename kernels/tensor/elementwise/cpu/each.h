// SPDX-License-Identifier: MIT
// A function of elements in lanes along the rows of y. A row of an operand is read where it lies; what is broadcast along it, or lies
// apart, is brought together first, a piece of a row at a time: rows one after the other, so that lines that they share stay in L1.
#pragma once

#include "kernels/backends/cpu/lanes.h"
#include "kernels/backends/cpu/twos.h"
#include "kernels/tensor/elementwise/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kPiece = 512;  // elements of a row

struct Piece {
  const void* from;
  long long step;
};  // of elements: 1, or 0 where kTwo equal ones serve all
template <class T> TILEKILN_INLINE Piece brought(const T* x, long long step, int count, T* piece) {
  if (step == 1) return {x, 1};
  if (step == 0)
    for (int j = 0; j < kTwo; ++j) piece[j] = *x;
  else
    for (int j = 0; j < count; ++j) piece[j] = x[j * step];
  return {piece, step != 0};
}

// y = F::of(x, how many) in units [first, last), of kMost arrays: exactly as many up to 2.
template <class T, int kMost, class F> void each(const tensor::Elementwise& a, long long first, long long last) {
  alignas(64) T pieces[kMost + 1][kPiece];
  const int operands = kMost <= 2 ? kMost : a.operands > 1 ? a.operands : 1;  // one at least, as compilers see
  const long long across = (a.columns + a.column_block - 1) / a.column_block;
  const long long down = (a.rows + a.row_block - 1) / a.row_block;
  for (long long unit = first; unit < last; ++unit) {
    const long long c0 = unit % across * a.column_block, r0 = unit / across % down * a.row_block;
    const long long c1 = c0 + a.column_block < a.columns ? c0 + a.column_block : a.columns;
    const long long r1 = r0 + a.row_block < a.rows ? r0 + a.row_block : a.rows;
    const T* x[kMost];
    T* y = (T*)a.y;
    for (int i = 0; i < operands; ++i) x[i] = (const T*)a.x[i];
    long long plane = unit / across / down;
    for (int d = tensor::kAround - 1; d >= 0 && plane > 0; --d) {
      const long long at = plane % a.around[d];
      plane /= a.around[d], y += at * a.around_y[d];
      for (int i = 0; i < operands; ++i) x[i] += at * a.around_x[i][d];
    }
    for (long long c = c0; c < c1; c += kPiece) {
      const int count = int(c1 - c < kPiece ? c1 - c : kPiece);
      for (long long r = r0; r < r1; ++r) {
        Piece row[kMost];
        for (int i = 0; i < operands; ++i)
          row[i] = brought(x[i] + r * a.row_x[i] + c * a.column_x[i], a.column_x[i], count, pieces[i]);
        T* const made = y + r * a.row_y + c * a.column_y;
        T* const to = a.column_y == 1 ? made : pieces[kMost];
        twos<1>(count, [&](int j, int, int left) __attribute__((always_inline)) {
          vfloat low[kMost], high[kMost];
          for (int i = 0; i < operands; ++i) {
            const Two two = widen_two<T>((const T*)row[i].from + j * row[i].step, left);
            low[i] = same_bits<vfloat>(two.a), high[i] = same_bits<vfloat>(two.b);
          }
          const Two all = {same_bits<vf>(F::of(low, operands)), same_bits<vf>(F::of(high, operands))};
          a.streaming&& left >= kTwo ? stream_two(to + j, all) : narrow_two<T>(to + j, all, left);
        });
        if (a.column_y != 1)
          for (int j = 0; j < count; ++j) made[j * a.column_y] = to[j];
      }
    }
  }
  if (a.streaming) stream_end();
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
