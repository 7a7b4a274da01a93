// SPDX-License-Identifier: MIT
// Blocks of gemm whose ISA multiplies squares: two columns by two rows by two words. Panels are [pair of words][column][2 words], of
// A and of B alike, or A is pairs of rows [pair of rows][pair of words][2 rows][2 words]. Sums are those of block.h, bit for bit.
#pragma once

#include "kernels/gemm/cpu/pack.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

template <class Compute> constexpr bool kSquares = false;

#if TILEKILN_SQUARES

template <> inline constexpr bool kSquares<ComputeBf16> = true;
template <> inline constexpr bool kSquares<ComputeInt8> = true;

template <class Compute> TILEKILN_INLINE vf square(vf sum, vf columns, vf rows) {
  if constexpr (Compute::kWord == 4) {
    return dot_square_quads(sum, columns, rows);
  } else {
    return dot_square_pairs(sum, columns, rows);
  }
}

// R rows, at most kRows; those of an odd R's last pair beyond it are multiplied and dropped. Operands::a_row is half of what pairs of
// rows are apart, a_word what their pairs of words are.
template <class Compute, int R> void square_block(const Operands& o) {
  constexpr int P = (R + 1) / 2, N = kBlockVectors, S = 2 * N;
  const auto other = [](int r) { return r + 1 < R ? r + 1 : r; };
  vf sum[P][S];
  TILEKILN_UNROLL(4) for (int i = 0; i < P; ++i) { TILEKILN_UNROLL(8) for (int j = 0; j < S; ++j) sum[i][j] = zero(); }
  const auto begin = [&](auto&& row_of) __attribute__((always_inline)) {
    TILEKILN_UNROLL(4) for (int i = 0; i < P; ++i) {
      TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) {
        const vf even = row_of(2 * i, j), odd = row_of(other(2 * i), j);
        sum[i][2 * j] = first_square(even, odd), sum[i][2 * j + 1] = second_square(even, odd);
      }
    }
  };
  if (o.from) {
    begin([&](int r, int j) __attribute__((always_inline)) { return load(o.from + r * o.from_row + j * kLanes); });
  } else if (Compute::kWord == 4 && o.starts) {
    begin([&](int r, int) __attribute__((always_inline)) { return broadcast_word(o.starts + r); });
  }
  if (o.to_bytes) {
    TILEKILN_UNROLL(8) for (int r = 0; r < R; ++r) {
      const char* const line = (const char*)o.to + r * o.to_row * o.to_bytes;
      for (int j = 0; j < N; ++j) __builtin_prefetch(line + j * kLanes * o.to_bytes, 1, 3);
    }
  }
  const char* a = o.a;
  const float* b = o.b;
  const i64 pair = 2 * o.a_row, a_word = o.a_word;
  const auto next_words = [&]() __attribute__((always_inline)) {
    vf y[P];
    TILEKILN_UNROLL(4) for (int i = 0; i < P; ++i) y[i] = load_unaligned((const float*)(a + i * pair));
    TILEKILN_UNROLL(4) for (int j = 0; j < S; j += 2) {
      const vf x = load(b + j * kLanes), next = load(b + (j + 1) * kLanes);
      TILEKILN_UNROLL(4) for (int i = 0; i < P; ++i) {
        sum[i][j] = square<Compute>(sum[i][j], x, y[i]), sum[i][j + 1] = square<Compute>(sum[i][j + 1], next, y[i]);
        before_loads(sum[i][j], sum[i][j + 1]);
      }
    }
    a += a_word, b += 2 * kPanel;
  };
  i64 w = o.words;
  if (o.ahead) {
    const char* ahead = o.ahead;
    const i64 ahead_line = o.ahead_line, ahead_row = o.ahead_row;
    for (; w >= 8; w -= 8, ahead += ahead_row) {
      const char* line = ahead;
      TILEKILN_UNROLL(1) for (int i = 0; i < 8; i += 2, line += 2 * ahead_line) {
        __builtin_prefetch(line, 0, 3), __builtin_prefetch(line + ahead_line, 0, 3);
        next_words();
      }
    }
  }
  TILEKILN_UNROLL(2) for (; w > 0; w -= 2) next_words();
  const i64 to_row = o.to_row;
  const auto put = [&](auto* to, auto&& put_vector) __attribute__((always_inline)) {
    TILEKILN_UNROLL(4) for (int i = 0; i < P; ++i) {
      TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) {
        put_vector(to + 2 * i * to_row + j * kLanes, first_row(sum[i][2 * j], sum[i][2 * j + 1]));
        if (2 * i + 1 < R)
          put_vector(to + (2 * i + 1) * to_row + j * kLanes, second_row(sum[i][2 * j], sum[i][2 * j + 1]));
      }
    }
  };
  if (kPairsOfBf16<Compute> && o.as_bf16)
    put((bf16*)o.to, [](bf16* p, vf x) __attribute__((always_inline)) { narrow(p, x); });
  else
    put((float*)o.to, [](float* p, vf x) __attribute__((always_inline)) { store_unaligned(p, x); });
}

template <class Compute> void square_product(const Operands& o, int rows) {
  static_assert(kRows == 6);
  switch (rows) {
    case 1: return square_block<Compute, 1>(o);
    case 2: return square_block<Compute, 2>(o);
    case 3: return square_block<Compute, 3>(o);
    case 4: return square_block<Compute, 4>(o);
    case 5: return square_block<Compute, 5>(o);
    default: return square_block<Compute, 6>(o);
  }
}

// ---- packing ---------------------------------------------------------------------------------------------------------

constexpr int kSquareWords = 64;  // are packed as words first, near enough to be turned

// Words of a panel, `step` floats from one to the next, become squares, where they lie too. Of an odd number the last meets zeros.
TILEKILN_INLINE void panel_squares(float* to, const float* from, i64 step, i64 words) {
  for (i64 w = 0; w < words; w += 2, from += 2 * step, to += 2 * kPanel) {
    vf even[kBlockVectors], odd[kBlockVectors];
    TILEKILN_UNROLL(4) for (int j = 0; j < kBlockVectors; ++j) {
      even[j] = load_unaligned(from + j * kLanes);
      odd[j] = w + 1 < words ? load_unaligned(from + step + j * kLanes) : zero();
    }
    TILEKILN_UNROLL(4) for (int j = 0; j < kBlockVectors; ++j) {
      store(to + 2 * j * kLanes, first_square(even[j], odd[j]));
      store(to + (2 * j + 1) * kLanes, second_square(even[j], odd[j]));
    }
  }
}
// Packs by `pack`, which makes panels of words of kWord elements; `along`: elements of T from one along K to the next.
template <class T, int kWord, PackPanel pack>
TILEKILN_INLINE void packed_squares(float* to, const void* from, i64 stride, int lanes, i64 elements, i64 along) {
  for (i64 k = 0; k < elements; k += kSquareWords * kWord, to += kSquareWords * kPanel) {
    const i64 some = elements - k < kSquareWords * kWord ? elements - k : kSquareWords * kWord;
    pack(to, (const T*)from + k * along, stride, lanes, some);
    panel_squares(to, to, kPanel, (some + kWord - 1) / kWord);
  }
}
template <class T, int kWord, PackPanel pack>
void pack_lane_squares(float* to, const void* from, i64 stride, int lanes, i64 elements) {
  packed_squares<T, kWord, pack>(to, from, stride, lanes, elements, stride);
}
template <class T, int kWord, PackPanel pack>
void pack_row_squares(float* to, const void* from, i64 stride, int lanes, i64 elements) {
  packed_squares<T, kWord, pack>(to, from, stride, lanes, elements, 1);
}
// Panels of words, as packed beforehand.
template <int kWord> void pack_word_squares(float* to, const void* from, i64 stride, int, i64 elements) {
  panel_squares(to, (const float*)from, stride, (elements + kWord - 1) / kWord);
}

// Pairs of rows of T, by `copy`, which makes rows of words; to_row is half of what pairs are apart. The second of a last pair is the first.
template <class T, int kWord, CopyRows copy>
void copy_row_squares(void* to, i64 to_row, const void* from, i64 stride, int rows, i64 elements) {
  constexpr bool kAsTheyLie = sizeof(T) * kWord == sizeof(float);
  constexpr i64 kRow = kSquareWords + kLanes;
  alignas(64) float made[2 * kRow];
  for (int i = 0; i < rows; i += 2) {
    float* out = (float*)((char*)to + i * to_row);
    const T* const p = (const T*)from + i * stride;
    const i64 next = i + 1 < rows ? stride : 0;
    for (i64 k = 0; k < elements; k += kSquareWords * kWord) {
      const i64 some = elements - k < kSquareWords * kWord ? elements - k : kSquareWords * kWord;
      const float *even = (const float*)(p + k), *odd = (const float*)(p + next + k);
      i64 words = some / kWord;
      if (!kAsTheyLie || some % (kWord * kLanes) != 0) {
        __builtin_memset(made, 0, sizeof made);
        copy(made, kRow * 4, p + k, next, 2, some);
        even = made, odd = made + kRow;
        words = (some + kWord - 1) / kWord;
      }
      for (i64 w = 0; w < words; w += kLanes, out += 2 * kLanes) {
        const vf x = load_unaligned(even + w), y = load_unaligned(odd + w);
        store(out, low_words(x, y)), store(out + kLanes, high_words(x, y));
      }
    }
  }
}

#else

template <class Compute> void square_product(const Operands&, int) {}

#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
