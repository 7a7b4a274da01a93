// SPDX-License-Identifier: MIT
// V of a partial block, where it holds NaN or infinity. P of a key that a lane does not see is 0, but 0 times
// either is NaN. So the product runs over a copy of V with 0 in their place, and what they add is added one by one, to the lanes that
// see their key. Finite V costs the look at it: one operation a vector, 2 % of such a block.
#pragma once

#include "kernels/attention/cpu/qlanes/block.h"
#include "kernels/attention/cpu/storage.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// rows: of V's words; width: words of one, as many as O has rows.
template <class Compute> bool all_finite(const ValueRows& v, int rows, int width) {
  constexpr int kSums = 4;
  vf sum[kSums] = {zero(), zero(), zero(), zero()};
  v.each_run(0, rows, [&](const float* row, i64 w, i64 end) __attribute__((always_inline)) {
    for (; w < end; ++w, row += v.stride) {
      int d = 0;
      for (; d + kSums * kLanes <= width; d += kSums * kLanes) {
        TILEKILN_UNROLL(4) for (int i = 0; i < kSums; ++i) {
          sum[i] = Compute::multiply_add(sum[i], load_unaligned(row + d + i * kLanes), zero());
        }
      }
      for (; d < width; d += kLanes) sum[0] = Compute::multiply_add(sum[0], widen_some(row + d, width - d), zero());
    }
  });
  return !any_above(abs(add(add(sum[0], sum[1]), add(sum[2], sum[3]))), zero());
}

// The word if element `half` of it is no number, with the other element 0; else 0.
template <class Compute> TILEKILN_INLINE uint32_t no_number(uint32_t word, int half) {
  if (Compute::kWord == 1) return (word & 0x7f800000u) == 0x7f800000u ? word : 0;
  const uint32_t element = word & 0xffffu << 16 * half, exponent = 0x7f80u << 16 * half;
  return (element & exponent) == exponent ? element : 0;
}

// The words of V as they are, in the scratch of K, whose scores are done; and without what is no number, in the scratch of V.
class HiddenValues {
 public:
  template <class Compute> static ValueRows cleaned(const Block& b, int rows) {
    const i64 stride = v_copy_stride(b.o_rows);
    b.v.each_run(0, rows, [&](const float* row, i64 w, i64 end) {
      for (; w < end; ++w, row += b.v.stride) __builtin_memcpy(b.scratch.k + w * stride, row, sizeof(float) * b.o_rows);
    });
    for (int w = 0; w < rows; ++w) {
      for (int d = 0; d < b.o_rows; ++d) {
        uint32_t word;
        __builtin_memcpy(&word, b.scratch.k + w * stride + d, sizeof word);
        for (int half = 0; half < Compute::kWord; ++half) word &= ~no_number<Compute>(word, half);
        __builtin_memcpy(b.scratch.v + w * stride + d, &word, sizeof word);
      }
    }
    return {b.scratch.v, stride};
  }

  // O += P V over what is no number in the words [begin, end), for one vector of queries from q. lanes(key): which see it.
  template <class Compute, class Lanes> static void add(const Block& b, int q, int begin, int end, Lanes&& lanes) {
    const i64 stride = v_copy_stride(b.o_rows);
    for (int w = begin; w < end; ++w) {
      const vf p = load(b.scratch.s + w * kTileQ + q);
      for (int d = 0; d < b.o_rows; ++d) {
        uint32_t word;
        __builtin_memcpy(&word, b.scratch.k + w * stride + d, sizeof word);
        for (int half = 0; half < Compute::kWord; ++half) {
          const uint32_t element = no_number<Compute>(word, half);
          if (element == 0) continue;
          float* const o = b.scratch.o + d * kTileQ + q;
          const vf sum = Compute::multiply_add(load(o), p, broadcast_word(&element));
          store(o, select(lanes(w * Compute::kWord + half), sum, load(o)));
        }
      }
    }
  }
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
