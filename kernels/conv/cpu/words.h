// SPDX-License-Identifier: MIT
// Lanes of pixels gathered as the panels of words that products read, [panel][word][lane], from pixels of x that lie side by side or every second
// one: AVX-512 loads some lanes of a vector and touches nothing else. gather.h does the same for other steps, and as a matrix.
#pragma once

#include "kernels/conv/cpu/gather.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr i64 kPanelOutputs = matrix::kPanelLanes;
constexpr i64 kMostTaps = 128;  // of a filter, whose places are looked up

#ifdef __AVX512BW__
constexpr bool kGathersWords = true;

// Bit i of mask at 2 i.
TILEKILN_INLINE uint32_t spread(uint32_t mask) { return (uint32_t)_pdep_u32(mask, 0x55555555u); }
// The lanes that mask names, kStep elements apart, each as a word of 32 bits whose upper ones are 0; others are 0.
template <int kStep> TILEKILN_INLINE __m512i lanes_of(const float* p, uint32_t mask) {
  if constexpr (kStep == 1) return _mm512_maskz_loadu_epi32((__mmask16)mask, p);
  const uint32_t wide = spread(mask);
  const __m512i low = _mm512_maskz_loadu_epi32((__mmask16)wide, p),
                high = _mm512_maskz_loadu_epi32((__mmask16)(wide >> 16), p + kLanes);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_permutex2var_epi32(low, even, high);
}
template <int kStep> TILEKILN_INLINE __m512i lanes_of(const uint16_t* p, uint32_t mask) {
  if constexpr (kStep == 1) return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((__mmask16)mask, p));
  return _mm512_maskz_loadu_epi16(spread(mask), p);
}
template <int kStep> TILEKILN_INLINE __m512i lanes_of(const signed char* p, uint32_t mask) {
  if constexpr (kStep == 1) return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8((__mmask16)mask, p));
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi8(spread(mask), p));
}

// Place of a tap for the lanes of a piece of a row, in elements from the first channel of x, and which of them are there.
struct TapPlace {
  i64 at;
  uint32_t mask;
};
constexpr int kMostPieces = 8;
struct Pieces {
  int count;
  float* to[kMostPieces];
  uint32_t lanes[kMostPieces];
  TapPlace taps[kMostPieces * kMostTaps];
};

// Words of some pieces of a panel: each row of x is read from one end to the other.
template <class T, int kStep>
void gather_pieces(const T* x, const Pieces& pieces, i64 taps, i64 channels, i64 channel, bool inner) {
  constexpr int kWord = 4 / sizeof(T), kBits = 8 * sizeof(T), kSoon = 8;
  const i64 count = taps * channels;
  i64 t = 0, k = 0, at_tap[kWord], at_row[kWord];
  for (i64 r = 0, row = 0; r < count; r += kWord, row += kPanelOutputs) {
    const int some = count - r < kWord ? int(count - r) : kWord;
    for (int i = 0; i < some; ++i) {
      at_tap[i] = t, at_row[i] = k * channel;
      if (inner && ++k == channels) k = 0, ++t;
      if (!inner && ++t == taps) t = 0, ++k;
    }
    const T* const soon = x + at_row[0] + (k + kSoon < channels ? kSoon * channel : 0);
    for (int p = 0; p < pieces.count; ++p) {
      const TapPlace* const of = pieces.taps + p * taps;
      const auto lanes = [&](int i) __attribute__((always_inline)) {
        return lanes_of<kStep>(x + at_row[i] + of[at_tap[i]].at, of[at_tap[i]].mask);
      };
      __builtin_prefetch(soon + of[at_tap[0]].at);
      __m512i word = lanes(0);
      if (some == kWord) {
        TILEKILN_UNROLL(4)
        for (int i = 1; i < kWord; ++i) word = _mm512_or_si512(word, _mm512_slli_epi32(lanes(i), i * kBits));
      } else {
        for (int i = 1; i < some; ++i)
          word = _mm512_or_si512(word, _mm512_sll_epi32(lanes(i), _mm_cvtsi32_si128(i * kBits)));
      }
      _mm512_mask_storeu_epi32(pieces.to[p] + row, (__mmask16)pieces.lanes[p], word);
    }
  }
}

template <class T>
void gather_panels(const Convolution& c, i64 group, i64 first, i64 pixels, const Words& words, T* to) {
  constexpr int kWord = 4 / sizeof(T);
  constexpr i64 kAcross = kPanelOutputs;
  const i64 channels = words.c1 - words.c0, taps = words.t1 - words.t0, rows = (words.count() + kWord - 1) / kWord;
  const conv::Steps& s = c.x_step;
  const T* const x = (const T*)c.x + (group * c.channels + words.c0) * s.channel;
  const auto gather = c.step[2] * s.at[2] == 1 ? gather_pieces<T, 1> : gather_pieces<T, 2>;
  Pieces pieces;
  pieces.count = 0;
  i64 panel = 0;
  const auto put = [&] {
    if (pieces.count > 0) gather(x, pieces, taps, channels, s.channel, c.channels_inner);
    pieces.count = 0;
  };
  segments(c, first, pixels, kLanes, [&](const Segment& segment) {
    if (pieces.count == kMostPieces || segment.lane / kAcross != panel) put(), panel = segment.lane / kAcross;
    const Pixel& at = segment.at;
    TapPlace* const places = pieces.taps + pieces.count * taps;
    TapPlace across[kMostTaps];  // of a row of taps
    for (i64 i = 0; i < c.filter[2]; ++i) {
      const i64 from = place(c, 2, at.at[2], i);
      const Range r = range_inside(from, c.step[2], c.in[2], segment.count);
      across[i] = {at.image * s.batch + from * s.at[2], (1u << r.high) - (1u << r.low)};
    }
    i64 i = words.t0 % c.filter[2], j = words.t0 / c.filter[2] % c.filter[1], l = words.t0 / c.filter[2] / c.filter[1];
    for (i64 t = 0; t < taps;) {
      const i64 a = place(c, 0, at.at[0], l), b = place(c, 1, at.at[1], j), line = a * s.at[0] + b * s.at[1];
      const uint32_t there = inside(c, 0, a) && inside(c, 1, b) ? ~0u : 0;
      for (; i < c.filter[2] && t < taps; ++i, ++t) places[t] = {across[i].at + line, across[i].mask & there};
      i = 0;
      if (++j == c.filter[1]) j = 0, ++l;
    }
    pieces.to[pieces.count] = (float*)(void*)to + panel * kAcross * rows + segment.lane % kAcross;
    pieces.lanes[pieces.count++] = (1u << segment.count) - 1;
  });
  put();
}

constexpr i64 kTurned = 512;  // vectors of words, in L1
// Filters of kLanes outputs, [channel][tap] in rows `step` elements apart, as words of [tap][channel], lanes of a panel; channels are whole words.
template <class T> void turn_filters(const T* w, i64 step, i64 rows, i64 taps, i64 channels, T* panel) {
  constexpr int kWord = 4 / sizeof(T), kBits = 8 * sizeof(T);
  alignas(64) float turned[kTurned * kLanes];
  const i64 most = kTurned / taps * kWord;
  const __m512i first = _mm512_set1_epi32(int((1ull << kBits) - 1));
  for (i64 k = 0; k < channels; k += most) {
    const i64 some = channels - k < most ? channels - k : most;
    turn_rows((const float*)(const void*)(w + k * taps), step / kWord, rows, some / kWord * taps,
              [&](i64 i, vf x) { store(turned + i * kLanes, x); });
    for (i64 t = 0; t < taps; ++t) {
      float* to = (float*)(void*)panel + (t * channels + k) / kWord * kPanelOutputs;
      for (i64 j = 0; j < some; j += kWord, to += kPanelOutputs) {
        __m512i word = _mm512_setzero_si512();
        TILEKILN_UNROLL(4) for (int n = 0; n < kWord; ++n) {
          const i64 at = (j + n) * taps + t;
          const __m512i shift = _mm512_set1_epi32(int(at % kWord) * kBits);
          const __m512i one = _mm512_srlv_epi32(_mm512_load_si512(turned + at / kWord * kLanes), shift);
          word = _mm512_or_si512(word, _mm512_slli_epi32(_mm512_and_si512(one, first), n * kBits));
        }
        _mm512_storeu_si512(to, word);
      }
    }
  }
}
#else
constexpr bool kGathersWords = false;
template <class T> void gather_panels(const Convolution&, i64, i64, i64, const Words&, T*) {}
template <class T> void turn_filters(const T*, i64, i64, i64, i64, T*) {}
#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
