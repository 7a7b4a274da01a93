// SPDX-License-Identifier: MIT
// Operands made into words: panels [word][kPanel lanes] of B, and of A where it cannot be broadcast as it lies. Missing lanes
// and elements are 0. A word is Compute::kWord elements along K.
#pragma once

#include <type_traits>

#include "kernels/backends/cpu/load.h"
#ifdef __AVX512F__
#include "kernels/backends/cpu/avx512/horizontal.h"
#elif defined(__AVX2__)
#include "kernels/backends/cpu/avx2/horizontal.h"
#endif
#include "kernels/gemm/cpu/block.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using int8 = signed char;
// `lanes` of them exist, `elements` along K; stride: elements from one to the next of those that are not contiguous.
using PackPanel = void (*)(float* to, const void* from, i64 stride, int lanes, i64 elements);
// Rows of A, K contiguous; to_row in bytes.
using CopyRows = void (*)(void* to, i64 to_row, const void* from, i64 stride, int rows, i64 elements);

// Words of a panel that are made as they are multiplied, from rows of a row-major B, and kept: the first block of rows that meets a
// panel packs it, and nothing is read or written twice.
template <class Make> struct Fresh {
  static constexpr bool kAhead = false, kRowByRow = true;
  static constexpr int kSoon = 16 / Make::kWord * Make::kWord;  // rows of B
  using T = typename Make::T;
  TILEKILN_INLINE explicit Fresh(const Operands& o) : from((const T*)o.fresh), row(o.fresh_row), to((float*)o.b) {}
  template <int N> TILEKILN_INLINE void next(vf (&x)[N]) {
    TILEKILN_UNROLL(4) for (int i = 0; i < Make::kWord; ++i) {
      const char* soon = (const char*)(from + (kSoon + i) * row);
      TILEKILN_UNROLL(4) for (int j = 0; j < kPanel * (int)sizeof(T); j += 64) __builtin_prefetch(soon + j, 0, 3);
    }
    Make::word(to, from, row);
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) x[j] = load(to + j * kLanes);
    from += Make::kWord * row, to += kPanel;
  }
  const T* from;
  i64 row;
  float* to;
};
template <class Compute, class Make> void fresh_product(const Operands& o) {
  block_product<Compute, kRows, kBlockVectors, Fresh<Make>>(o);
}

template <class T> TILEKILN_INLINE T least(T a, T b) { return a < b ? a : b; }
TILEKILN_INLINE int at_most(i64 n, int most) { return n < most ? (int)n : most; }

// ---- fp32 words ------------------------------------------------------------------------------------------------------

// Lanes contiguous: B row-major, A column-major.
template <class T> void pack_lanes_fp32(float* to, const void* from, i64 stride, int lanes, i64 elements) {
  const T* p = (const T*)from;
  for (i64 k = 0; k < elements; ++k, p += stride, to += kPanel) {
    if (lanes >= kPanel) {
      TILEKILN_UNROLL(8) for (int j = 0; j < kPanel; j += kLanes) store(to + j, widen(p + j));
    } else {
      for (int j = 0; j < kPanel; j += kLanes) store(to + j, j < lanes ? widen_some(p + j, lanes - j) : zero());
    }
  }
}
template <class T> void copy_rows_fp32(void* to, i64 to_row, const void* from, i64 stride, int rows, i64 elements) {
  for (int i = 0; i < rows; ++i) {
    const T* p = (const T*)from + i * stride;
    float* q = (float*)((char*)to + i * to_row);
    for (i64 k = 0; k < elements; k += kLanes) store(q + k, widen_some(p + k, at_most(elements - k, kLanes)));
  }
}
// A word of every lane.
struct MakeFp32 {
  using T = float;
  static constexpr int kWord = 1;
  static TILEKILN_INLINE void word(float* to, const float* p, i64) {
    TILEKILN_UNROLL(8) for (int j = 0; j < kPanel; j += kLanes) store(to + j, widen(p + j));
  }
};
// A register of words of one row, of which `elements` exist.
struct Fp32Words {
  static constexpr int kWord = 1;
  static constexpr bool kFlip = false;
  template <class T> static TILEKILN_INLINE vf get(const T* p, int elements) { return widen_some(p, elements); }
};

// ---- int16 pairs -----------------------------------------------------------------------------------------------------

template <class T> void pack_lanes_int16(float* to, const void* from, i64 stride, int lanes, i64 elements) {
  const T* p = (const T*)from;
  const int n = lanes < kPanel ? lanes : kPanel;
  for (i64 k = 0; k < elements; k += 2, p += 2 * stride, to += kPanel) {
    uint32_t words[kPanel] = {};
    for (int j = 0; j < n; ++j) words[j] = uint16_t(p[j]);
    if (k + 1 < elements) {
      for (int j = 0; j < n; ++j) words[j] |= uint32_t(uint16_t(p[stride + j])) << 16;
    }
    __builtin_memcpy(to, words, sizeof words);
  }
}
inline void copy_rows_int16(void* to, i64 to_row, const void* from, i64 stride, int rows, i64 elements) {
  for (int i = 0; i < rows; ++i) {
    const int8* p = (const int8*)from + i * stride;
    int16_t* q = (int16_t*)((char*)to + i * to_row);
    for (i64 k = 0; k < elements; ++k) q[k] = p[k];
    if (elements & 1) q[elements] = 0;
  }
}
struct Int16Words {
  static constexpr int kWord = 2;
  static constexpr bool kFlip = false;
  static TILEKILN_INLINE vf get(const int8* p, int elements) {
    alignas(64) int16_t row[2 * kLanes] = {};
    const int n = elements < 2 * kLanes ? elements : 2 * kLanes;
    for (int i = 0; i < n; ++i) row[i] = p[i];
    vf r;
    __builtin_memcpy(&r.v, row, sizeof r.v);
    return r;
  }
};

// Panels of pairs, as packed beforehand, into fp32 words; stride: pairs from one to the next along K.
template <class T> void unpack_pairs(float* to, const void* from, i64 stride, int lanes, i64 elements) {
  const T* p = (const T*)from;
#ifdef __AVX2__
  if constexpr (std::is_same_v<T, bf16>) {
    if (lanes == kPanel) {
      for (; elements >= 2; elements -= 2, p += 2 * stride, to += 2 * kPanel) {
        TILEKILN_UNROLL(4) for (int j = 0; j < kPanel; j += kLanes) {
          vf even, odd;
          even_odd(p + 2 * j, even, odd);
          store(to + j, even), store(to + kPanel + j, odd);
        }
      }
    }
  }
#endif
  for (i64 k = 0; k < elements; k += 2, p += 2 * stride, to += 2 * kPanel) {
    for (int j = 0; j < lanes; ++j) to[j] = core::widen(p[2 * j]);
    if (k + 1 == elements) return;
    for (int j = 0; j < lanes; ++j) to[kPanel + j] = core::widen(p[2 * j + 1]);
  }
}

#if TILEKILN_PAIRS
// ---- bf16 pairs ------------------------------------------------------------------------------------------------------

template <class T> void pack_lanes_bf16(float* to, const void* from, i64 stride, int lanes, i64 elements) {
  const T* p = (const T*)from;
  for (i64 k = 0; k < elements; k += 2, p += 2 * stride, to += kPanel) {
    TILEKILN_UNROLL(2) for (int j = 0; j < kPanel; j += 2 * kLanes) {
      const int n = lanes - j < 0 ? 0 : lanes - j;
      const vh even = load_halves(p + (n ? j : 0), n);
      const vh odd = k + 1 < elements ? load_halves(p + stride + (n ? j : 0), n) : zero_halves();
      interleave((bf16*)(to + j), even, odd);
    }
  }
}
template <class T> void copy_rows_bf16(void* to, i64 to_row, const void* from, i64 stride, int rows, i64 elements) {
  for (int i = 0; i < rows; ++i) {
    const T* p = (const T*)from + i * stride;
    bf16* q = (bf16*)((char*)to + i * to_row);
    constexpr int kStep = 2 * kLanes;
    for (i64 k = 0; k < elements; k += kStep) store_halves(q + k, load_halves(p + k, at_most(elements - k, kStep)));
  }
}
struct MakeBf16 {
  using T = bf16;
  static constexpr int kWord = 2;
  static TILEKILN_INLINE void word(float* to, const bf16* p, i64 stride) {
    TILEKILN_UNROLL(4)
    for (int j = 0; j < kPanel; j += 2 * kLanes)
      interleave((bf16*)(to + j), load_halves(p + j), load_halves(p + stride + j));
  }
};
struct Bf16Words {
  static constexpr int kWord = 2;
  static constexpr bool kFlip = false;
  template <class T> static TILEKILN_INLINE vf get(const T* p, int elements) { return words(load_halves(p, elements)); }
};
#endif

#if TILEKILN_QUADS
// ---- int8 quads ------------------------------------------------------------------------------------------------------

// Flip: to unsigned, as B is wanted. A missing element of B is then 128, and meets a 0 of A.
template <bool Flip> TILEKILN_INLINE vf quad_bytes(const int8* p, i64 n) {
  const vf x = load_bytes(p, n);
  return Flip ? flip_signs(x) : x;
}
template <bool Flip> void pack_lanes_int8(float* to, const void* from, i64 stride, int lanes, i64 elements) {
  static_assert(kPanel == 4 * kLanes);
  const int8* p = (const int8*)from;
  for (i64 k = 0; k < elements; k += 4, p += 4 * stride, to += kPanel) {
    vf rows[4];
    TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) {
      const bool there = k + i < elements;
      rows[i] = quad_bytes<Flip>(p + (there ? i * stride : 0), there ? lanes : 0);
    }
    interleave_bytes(to, rows);
  }
}
inline void copy_rows_int8(void* to, i64 to_row, const void* from, i64 stride, int rows, i64 elements) {
  for (int i = 0; i < rows; ++i) {
    const int8* p = (const int8*)from + i * stride;
    char* q = (char*)to + i * to_row;
    for (i64 k = 0; k < elements; k += 4 * kLanes) store((float*)(q + k), load_bytes(p + k, elements - k));
  }
}
struct MakeInt8 {
  using T = int8;
  static constexpr int kWord = 4;
  static TILEKILN_INLINE void word(float* to, const int8* p, i64 stride) {
    vf rows[4];
    TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) rows[i] = flip_signs(load_unaligned((const float*)(p + i * stride)));
    interleave_bytes(to, rows);
  }
};
template <bool Flip> struct QuadWords {
  static constexpr int kWord = 4;
  static constexpr bool kFlip = Flip;
  static TILEKILN_INLINE vf get(const int8* p, int elements) { return quad_bytes<Flip>(p, elements); }
};
using Int8Words = QuadWords<true>;
using SignedInt8Words = QuadWords<false>;
#endif

// to[i kPanel + j] = word i of row j of kLanes x kLanes words, rows `stride` bytes apart. A function for words as they lie, whatever
// they hold, and one for fp16: a transposition in registers is 0.15 s of compilation.
template <class T>
__attribute__((noinline)) void transpose_words(float* to, const char* from, i64 stride, [[maybe_unused]] bool flip) {
  vf r[kLanes];
  TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) r[i] = widen((const T*)(from + i * stride));
#if TILEKILN_QUADS
  if (flip) {
    TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) r[i] = flip_signs(r[i]);
  }
#endif
  transpose(r);
  TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) store(to + i * kPanel, r[i]);
}
constexpr i64 kPageBytes = 4096;
constexpr int kStepsAhead = 2;
// K contiguous (B column-major, as the weight of torch's Linear): squares of kLanes x kLanes words. What is no whole square of words as
// they lie is made one first.
template <class T, class Words> void pack_rows(float* to, const void* from, i64 stride, int lanes, i64 elements) {
  constexpr int kStep = kLanes * Words::kWord;
  constexpr bool kWiden = std::is_same_v<T, fp16>, kAsTheyLie = sizeof(T) * Words::kWord == sizeof(float);
  constexpr bool kFlip = Words::kFlip;
  const i64 words = (elements + Words::kWord - 1) / Words::kWord;
  const bool far = stride * i64(sizeof(T)) >= kPageBytes;  // more pages than processors follow by themselves
  alignas(64) float square[kLanes * kLanes], turned[kLanes * kPanel];
  for (i64 e = 0, w = 0; e < elements; e += kStep, w += kLanes) {
    for (int j = 0; j < kPanel; j += kLanes) {
      const T* p = (const T*)from + e;
      if (far) {
        TILEKILN_UNROLL(16)
        for (int i = 0; i < kLanes; ++i) __builtin_prefetch(p + (j + i) * stride + kStepsAhead * kStep, 0, 2);
      }
      const int left = at_most(elements - e, kStep);
      float* const whole = to + w * kPanel + j;
      float* const out = w + kLanes <= words ? whole : turned;
      if ((kAsTheyLie || kWiden) && j + kLanes <= lanes && left == kStep) {
        using Whole = std::conditional_t<kWiden, fp16, float>;
        transpose_words<Whole>(out, (const char*)(p + j * stride), stride * sizeof(T), kFlip);
      } else {
        TILEKILN_UNROLL(1)
        for (int i = 0; i < kLanes; ++i)
          store(square + i * kLanes, j + i < lanes ? Words::get(p + (j + i) * stride, left) : zero());
        transpose_words<float>(out, (const char*)square, kLanes * sizeof(float), false);
      }
      if (out == whole) continue;
      TILEKILN_UNROLL(1) for (int i = 0; w + i < words; ++i) store(whole + i * kPanel, load(turned + i * kPanel));
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
