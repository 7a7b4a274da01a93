// SPDX-License-Identifier: MIT
// Rows that will be read soon, asked into L2 a row at a time while products run. Asked for all at once they cost what
// loading them does (measured: nothing won); between products they cost 1 to 2 cycles a line, where a load from L3 that
// nobody asked for takes 8 to 16.
#pragma once

#include "kernels/attention/cpu/tile.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

class Ahead {
 public:
  // Begins with the next tile's rows, which come first; they replace what is left of this one's.
  void next_tile() { tile_.at = tile_.end = 0; }
  void add_to_tile(const void* rows, i64 stride, int count, i64 width) { tile_.add(rows, stride, count, width); }
  // Adds rows that are wanted when the unit ends.
  void add_to_unit(const void* rows, i64 stride, int count, i64 width) { unit_.add(rows, stride, count, width); }

  TILEKILN_INLINE void step() {
    List& list = tile_.at < tile_.end ? tile_ : unit_;
    if (list.at == list.end) return;
    Rows& r = list.rows[list.at];
    for (i64 i = 0; i < r.width; i += 64) __builtin_prefetch(r.row + i, 0, 2);
    r.row += r.stride;
    list.at += --r.count == 0;
  }

 private:
  struct Rows {
    const char* row;
    i64 stride, width;  // in bytes
    int count;
  };
  struct List {
    Rows rows[4];
    int at = 0, end = 0;
    void add(const void* first, i64 stride, int count, i64 width) {
      if (count > 0 && width > 0) rows[end++] = {(const char*)first, stride, width, count};
    }
  };
  List tile_, unit_;
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
