// SPDX-License-Identifier: MIT
// The register-blocked product of gemm: R rows x N vectors of accumulators over a run-time number of words. A is broadcast from
// where it lies, by any two strides; B is vectors of a panel.
#pragma once

#include "kernels/backends/cpu/compute.h"
#include "kernels/backends/cpu/load.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using i64 = long long;

// int8 as pairs of int16: any ISA. Sums are int32, modulo 2^32.
struct ComputeInt16 {
  static constexpr int kWord = 2;
  template <class Factor> static TILEKILN_INLINE vf multiply_add(vf sum, vf b, Factor a) {
    return dot_int16(sum, b, a);
  }
};

#if TILEKILN_QUADS
// Quads of int8. B is packed with 128 added to each byte, since the product takes one unsigned factor: what is too much,
// 128 times the sum of a row of A, is taken off before: sums start there.
struct ComputeInt8 {
  static constexpr int kWord = 4;
  template <class Factor> static TILEKILN_INLINE vf multiply_add(vf sum, vf b, Factor a) { return dot_quad(sum, b, a); }
  static TILEKILN_INLINE vf add(vf a, vf b) { return add_int32(a, b); }
};
#endif

template <class Compute> constexpr bool kPairsOfBf16 = false;
#if TILEKILN_PAIRS
template <> constexpr bool kPairsOfBf16<ComputeBf16> = true;
#endif

// 24 accumulators of 32 registers, or 12 or 8 of 16: Zen 5 wants 8 (fp32) or 12 (bf16) in flight.
constexpr int kRows = kBlockVectors == 4 ? 6 : block_rows(kBlockVectors);
constexpr int kPanel = kBlockVectors * kLanes;  // columns of B that lie together
// Half a panel, which is all that narrow products have, takes more rows: 16 accumulators.
constexpr int kHalfRows = kLanes == 16 ? 8 : 0;
constexpr int kQuarterRows = kLanes == 16 ? 12 : 0;  // a quarter of a panel
constexpr int kMostBlockRows = kQuarterRows > kRows ? kQuarterRows : kRows;

struct Operands {
  const char* a;
  i64 a_row, a_word;  // bytes
  const float* b;
  i64 b_word;  // elements of the panel from one word's vectors to the next
  i64 words;
  const float* from;  // accumulators to go on from; null: zero
  i64 from_row;
  void* to;
  i64 to_row;    // elements
  i64 to_bytes;  // of an element of out that is stored to, whose lines are asked for beforehand: 1 to 2 %; 0: none
  bool as_bf16;  // what is stored, of pairs of bf16 alone; else sums as they are
  // Memory wanted next, prefetched a line with each word, and another so many bytes behind it: 8 times, then as often of the next row.
  const char* ahead;
  i64 ahead_line, ahead_row, ahead_second;  // bytes
  i64 own_ahead;      // bytes of the panel itself that are asked for ahead of what is multiplied, instead; 0: none
  i64 a_ahead;        // bytes from rows of A to those that are wanted next, asked for (L2) as these are read; 0: none
  const int* starts;  // where the sums of each row begin, without `from`: quads of int8 alone
  const void* fresh;  // rows of a row-major B that become the panel: Fresh
  i64 fresh_row;      // elements
};

// A panel of T, widened on the way where it is not words.
template <class T> struct Ready {
  TILEKILN_INLINE explicit Ready(const Operands& o) : b((const T*)o.b), step(o.b_word) {}
  template <int N> TILEKILN_INLINE void next(vf (&x)[N]) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) x[j] = widen(b + j * kLanes);
    b += step;
  }
  static constexpr bool kAhead = sizeof(T) == sizeof(float);  // what comes next is asked for: Operands
  static constexpr bool kRowByRow = kAhead;  // a row's load waits for the row before: widening has registers of its own
  const T* b;
  i64 step;
};

template <class Compute, int R, int N, class Words = Ready<float>> TILEKILN_INLINE void block_product(
    const Operands& o) {
  vf sum[R][N];
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) { TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = zero(); }
  if constexpr (Compute::kWord == 4) {
    if (o.starts) {
      TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
        TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = broadcast_word(o.starts + r);
      }
    }
  }
  if (o.from) {
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = load(o.from + r * o.from_row + j * kLanes);
    }
  }
  if (o.to_bytes) {
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
      const char* const line = (const char*)o.to + r * o.to_row * o.to_bytes;
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) __builtin_prefetch(line + j * kLanes * o.to_bytes, 1, 3);
    }
  }
  constexpr int kGroup = 3;  // rows addressed from one pointer: it, it + row, it + 2 row are single operands
  const char* a[(R + kGroup - 1) / kGroup];
  TILEKILN_UNROLL(16) for (int g = 0; g * kGroup < R; ++g) a[g] = o.a + g * kGroup * o.a_row;
  const i64 row = o.a_row, a_word = o.a_word;
  Words b(o);
  const auto next_word = [&]<bool RowByRow = false>() __attribute__((always_inline)) {
    vf x[N];
    b.next(x);
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
      const word y = load_word(a[r / kGroup] + r % kGroup * row);
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = Compute::multiply_add(sum[r][j], x[j], y);
      if constexpr (RowByRow) before_loads(sum[r][0], sum[r][N - 1]);
    }
    TILEKILN_UNROLL(16) for (int g = 0; g * kGroup < R; ++g) a[g] += a_word;
  };
  i64 w = o.words;
  // Prefetches nothing for one row, and for half a panel and less only A.
  if constexpr (Words::kAhead && R > 1) {
    if (N == kBlockVectors && o.own_ahead) {
      for (; w > 0; --w) {
        TILEKILN_UNROLL(4)
        for (int j = 0; j < N; ++j) __builtin_prefetch((const char*)(b.b + j * kLanes) + o.own_ahead, 0, 3);
        next_word();
      }
    } else if (R >= kRows && o.a_ahead) {
      for (; w >= 16; w -= 16) {  // a line of each row
        TILEKILN_UNROLL(16)
        for (int r = 0; r < R; ++r) __builtin_prefetch(a[r / kGroup] + r % kGroup * row + o.a_ahead, 0, 2);
        TILEKILN_UNROLL(2) for (int i = 0; i < 16; ++i) next_word();
      }
    } else if (N == kBlockVectors && o.ahead) {
      const char* ahead = o.ahead;
      for (; w >= 8; w -= 8, ahead += o.ahead_row) {
        const char* line = ahead;
        TILEKILN_UNROLL(1) for (int i = 0; i < 8; ++i, line += o.ahead_line) {
          __builtin_prefetch(line, 0, 3), __builtin_prefetch(line + o.ahead_second, 0, 3);
          next_word();
        }
      }
    }
  }
  if constexpr (R * N < 12) {
    TILEKILN_UNROLL(4) for (; w > 0; --w) next_word();
  } else {  // 4 are no faster, 1 loses .5 to 1.5 % of squares
    TILEKILN_UNROLL(2) for (; w > 0; --w) next_word.template operator()<Words::kRowByRow>();
  }
  const i64 to_row = o.to_row;
  const auto store_block = [&](auto* to, auto&& store_vector) __attribute__((always_inline)) {
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r, to += to_row) {
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) store_vector(to + j * kLanes, sum[r][j]);
    }
  };
#if TILEKILN_PAIRS
  if (kPairsOfBf16<Compute> && o.as_bf16) {
    store_block((bf16*)o.to, [](bf16* p, vf x) __attribute__((always_inline)) { narrow(p, x); });
    return;
  }
#endif
  store_block((float*)o.to, [](float* p, vf x) __attribute__((always_inline)) { store_unaligned(p, x); });
}

// `rows` in [1, kRows): a whole block is spelled out where it is called.
template <class Compute> void rows_product(const Operands& o, int rows) {
  static_assert(kRows == 4 || kRows == 6, "Numbers of rows are spelled out for 4 and 6.");
  switch (rows) {
    case 1: return block_product<Compute, 1, kBlockVectors>(o);
    case 2: return block_product<Compute, 2, kBlockVectors>(o);
    case 3: return block_product<Compute, 3, kBlockVectors>(o);
    case 4:
      if constexpr (kRows == 6) return block_product<Compute, 4, kBlockVectors>(o);
      break;
    default:
      if constexpr (kRows == 6) return block_product<Compute, 5, kBlockVectors>(o);
  }
}

// `rows` in [1, kStoredRows] times a panel of T that is widened on the way: memory is waited for, not arithmetic.
constexpr int kStoredRows = 4;
template <class Compute, class T> void stored_product(const Operands& o, int rows) {
  switch (rows) {
    case 1: return block_product<Compute, 1, kBlockVectors, Ready<T>>(o);
    case 2: return block_product<Compute, 2, kBlockVectors, Ready<T>>(o);
    case 3: return block_product<Compute, 3, kBlockVectors, Ready<T>>(o);
    default: return block_product<Compute, 4, kBlockVectors, Ready<T>>(o);
  }
}

// A few rows more than a block has in one pass: `rows` in (kRows, kTallRows], A row-major. In tall.h, compiled with dots.cpp.
constexpr int kTallRows = kLanes == 16 ? kRows + 2 : 0;
template <class Compute> void tall_product(const Operands& o, int rows);

// kHalfRows rows times half a panel, kQuarterRows rows times a quarter.
template <class Compute> void half_product(const Operands& o) {
  if constexpr (kHalfRows > 0) block_product<Compute, kHalfRows, kBlockVectors / 2>(o);
}
template <class Compute> void quarter_product(const Operands& o) {
  if constexpr (kQuarterRows > 0) block_product<Compute, kQuarterRows, kBlockVectors / 4>(o);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
