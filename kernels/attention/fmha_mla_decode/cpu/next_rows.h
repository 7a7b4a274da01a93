// SPDX-License-Identifier: MIT
// The rows of the cache that come next, asked into L2 a few at a time while products run over those before.
#pragma once

#include "kernels/attention/cpu/tile.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

class NextRows {
 public:
  // `steps`: how often step() will be called, over which the rows are spread.
  void begin(i64 bytes, int steps) { count_ = at_ = done_ = 0, bytes_ = bytes, steps_ = steps; }
  void add(const char* row) { row_[count_++] = row; }

  TILEKILN_INLINE void step() {
    const int due = ++done_ * count_ / steps_;
    for (; at_ < due && at_ < count_; ++at_) {
      for (i64 byte = 0; byte < bytes_; byte += 64) __builtin_prefetch(row_[at_] + byte, 0, 2);
    }
  }

 private:
  const char* row_[kTileK];
  i64 bytes_ = 0;
  int count_ = 0, at_ = 0, done_ = 0, steps_ = 1;
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
