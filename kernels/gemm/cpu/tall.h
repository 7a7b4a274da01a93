// SPDX-License-Identifier: MIT
// Seven and eight rows of packed panels, as memory gives them soonest. Of dots.cpp alone.
#pragma once

#include "kernels/gemm/cpu/block.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// A few rows more than a block has, of a panel that memory gives slower than it is multiplied, in one pass: lines that a second block reads
// again cost a tenth of memory's speed. Sums of those rows wait in L1 between groups of words. A is row-major.
constexpr int kTallWords = 16;
template <class Compute> void tall_product(const Operands& o, int rows) {
  constexpr int N = kBlockVectors, R = kRows, kRest = 2;
  const auto start = [&](int r, int j) __attribute__((always_inline)) {
    if (Compute::kWord == 4 && o.starts) return broadcast_word(o.starts + r);
    return o.from ? load(o.from + r * o.from_row + j * kLanes) : zero();
  };
  const int last = rows - 1;  // of seven rows the eighth is the seventh again
  vf sum[R][N];
  alignas(64) float rest[kRest][kPanel];
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = start(r, j);
  }
  for (int i = 0; i < kRest; ++i) {
    for (int j = 0; j < N; ++j) store(rest[i] + j * kLanes, start(R + i < last ? R + i : last, j));
  }
  const float* b = o.b;
  const char *a0 = o.a, *a1 = o.a + 3 * o.a_row, *a_rest[kRest] = {o.a + R * o.a_row, o.a + last * o.a_row};
  const i64 row = o.a_row, ahead = o.own_ahead;
  // Sums of the rest, of two vectors of the panel from the j-th on, by some words.
  const auto beyond = [&](int j, auto&& every_word) __attribute__((always_inline)) {
    vf s[kRest][2];
    TILEKILN_UNROLL(2) for (int i = 0; i < kRest; ++i) {
      TILEKILN_UNROLL(2) for (int v = 0; v < 2; ++v) s[i][v] = load(rest[i] + (j + v) * kLanes);
    }
    every_word([&](int w) __attribute__((always_inline)) {
      TILEKILN_UNROLL(2) for (int v = 0; v < 2; ++v) {
        const vf x = load_unaligned(b + w * kPanel + (j + v) * kLanes);
        TILEKILN_UNROLL(2)
        for (int i = 0; i < kRest; ++i) s[i][v] = Compute::multiply_add(s[i][v], x, load_word(a_rest[i] + 4 * w));
      }
    });
    TILEKILN_UNROLL(2) for (int i = 0; i < kRest; ++i) {
      TILEKILN_UNROLL(2) for (int v = 0; v < 2; ++v) store(rest[i] + (j + v) * kLanes, s[i][v]);
    }
  };
  for (i64 left = o.words; left > 0; left -= kTallWords) {
    const int words = left < kTallWords ? int(left) : kTallWords;
    const float* from = b;
    TILEKILN_UNROLL(1) for (int w = 0; w < words; ++w, from += kPanel, a0 += 4, a1 += 4) {
      vf x[N];
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) {
        __builtin_prefetch((const char*)(from + j * kLanes) + ahead, 0, 3);
        x[j] = load_unaligned(from + j * kLanes);
      }
      TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
        const word y = load_word((r < 3 ? a0 : a1) + r % 3 * row);
        TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = Compute::multiply_add(sum[r][j], x[j], y);
      }
    }
    if (words == kTallWords) {
      TILEKILN_UNROLL(8) for (int j = 0; j < N; j += 2) {
        asm("" : "+r"(a_rest[0]), "+r"(a_rest[1]));  // else words of A wait on the stack for the next vectors
        beyond(j, [](auto&& word) __attribute__((always_inline)) {
          TILEKILN_UNROLL(16) for (int w = 0; w < kTallWords; ++w) word(w);
        });
      }
    } else {
      TILEKILN_UNROLL(1) for (int j = 0; j < N; j += 2) {
        beyond(j, [words](auto&& word) __attribute__((always_inline)) {
          TILEKILN_UNROLL(1) for (int w = 0; w < words; ++w) word(w);
        });
      }
    }
    b = from;
    TILEKILN_UNROLL(2) for (int i = 0; i < kRest; ++i) a_rest[i] += kTallWords * 4;
  }
  const auto put = [&](int r, int j, vf x) __attribute__((always_inline)) {
#if TILEKILN_PAIRS
    if (kPairsOfBf16<Compute> && o.as_bf16) return narrow((bf16*)o.to + r * o.to_row + j * kLanes, x);
#endif
    store_unaligned((float*)o.to + r * o.to_row + j * kLanes, x);
  };
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) put(r, j, sum[r][j]);
  }
  for (int r = R; r < rows; ++r) {
    for (int j = 0; j < N; ++j) put(r, j, load(rest[r - R] + j * kLanes));
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
