// SPDX-License-Identifier: MIT
// Storage stages: Q transposed into words, K and V rows converted or padded where they cannot be used as they lie, O
// transposed back. One function per storage type; a pipeline holds them in a table, so it is compiled once per Compute.
#pragma once

#include "kernels/attention/cpu/tile.h"
#include "kernels/backends/cpu/load.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using LoadQ = void (*)(float* q, const void* from, i64 stride, int rows, int hdim);
using LoadRows = void (*)(void* to, const void* from, i64 stride, int rows, int hdim);
using StoreOut = void (*)(void* to, i64 stride, const float* o, const float* factor, int rows, int hdim);

// Strides of the copies, in words. Whole registers are stored, so that no copy ends inside one.
constexpr int k_copy_stride(int words) { return round_up(words, 16); }
constexpr int v_copy_stride(int hdim) { return round_up(hdim, 32); }

// Scratch leaves L1 between tiles. Stores that miss drain one by one, so the lines of the next transpose are asked for
// ahead (with O no longer cleared: S = 77 takes 0.72-0.83 of the time).
TILEKILN_INLINE void prefetch_transposed(float* p) {
  TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) __builtin_prefetch(p + i * kTileQ, 1);
}

// Q^T[d][query] for as many vectors of queries as there are rows; missing queries and head dims are 0.
template <class T> void load_q_fp32(float* q, const void* from, i64 stride, int rows, int hdim) {
  for (int j = 0; j < rows; j += kLanes) {
    for (int d = 0; d < hdim; d += kLanes) {
      vf r[kLanes];
      for (int i = 0; i < kLanes; ++i)
        r[i] = j + i < rows ? widen_some((const T*)from + (j + i) * stride + d, hdim - d) : zero();
      prefetch_transposed(q + (d + kLanes) * kTileQ + j);
      transpose(r);
      for (int i = 0; i < kLanes; ++i) store(q + (d + i) * kTileQ + j, r[i]);
    }
  }
}

template <class T, bool IsValue> void load_rows_fp32(void* to, const void* from, i64 stride, int rows, int hdim) {
  const int width = IsValue ? v_copy_stride(hdim) : k_copy_stride(hdim);
  for (int i = 0; i < rows; ++i) {
    const T* p = (const T*)from + i * stride;
    float* row = (float*)to + i * width;
    int d = 0;
    for (; d + kLanes <= hdim; d += kLanes) store(row + d, widen(p + d));
    if (d < hdim) store(row + d, widen_some(p + d, hdim - d));
  }
}

// out[query][d] = O^T[d][query] factor[query]
template <class T> void store_out(void* to, i64 stride, const float* o, const float* factor, int rows, int hdim) {
  const auto prefetch = [&](int j) {
    for (int i = j; i < j + kLanes && i < rows; ++i) {
      for (int d = 0; d < hdim; d += int(64 / sizeof(T))) __builtin_prefetch((T*)to + i * stride + d, 1);
    }
  };
  prefetch(0);
  // Two transposes make a line of a narrow type, and both are there before it is stored: 16 rows a page apart are more than a set of
  // L1 holds, so that half a line at a time each came twice (bf16, D = 128, 16 heads: 512 tokens take 0.97-0.99 of the time).
  constexpr int kTurn = sizeof(T) < 4 ? 2 * kLanes : kLanes;
  for (int j = 0; j < rows; j += kLanes) {
    prefetch(j + kLanes);
    const vf f = load(factor + j);
    for (int d = 0; d < hdim; d += kTurn) {
      vf r[kTurn];
      for (int i = 0; i < kTurn && d + i < hdim; i += kLanes) {
        for (int n = i; n < i + kLanes; ++n) r[n] = mul(load(o + (d + n) * kTileQ + j), f);
        transpose(r + i);
      }
      for (int i = 0; i < kLanes && j + i < rows; ++i) {
        T* const row = (T*)to + (j + i) * stride + d;
        narrow_some(row, r[i], hdim - d);
        if (kTurn > kLanes && d + kLanes < hdim) narrow_some(row + kLanes, r[kTurn - kLanes + i], hdim - d - kLanes);
      }
    }
  }
}

#if TILEKILN_PAIRS
template <class T> void load_q_pairs(float* q, const void* from, i64 stride, int rows, int hdim) {
  for (int j = 0; j < rows; j += kLanes) {
    for (int d = 0; d < hdim; d += 2 * kLanes) {
      vf r[kLanes];
      for (int i = 0; i < kLanes; ++i)
        r[i] = j + i < rows ? words(load_halves((const T*)from + (j + i) * stride + d, hdim - d)) : zero();
      prefetch_transposed(q + (d / 2 + kLanes) * kTileQ + j);
      transpose(r);
      for (int i = 0; i < kLanes; ++i) store(q + (d / 2 + i) * kTileQ + j, r[i]);
    }
  }
}

template <class T> void load_k_pairs(void* to, const void* from, i64 stride, int rows, int hdim) {
  const int width = 2 * k_copy_stride((hdim + 1) / 2);
  for (int i = 0; i < rows; ++i) {
    for (int d = 0; d < hdim; d += 2 * kLanes)
      store_halves((bf16*)to + i * width + d, load_halves((const T*)from + i * stride + d, hdim - d));
  }
}

// Words of two keys: (V[2i][d], V[2i + 1][d]); a missing last key is 0.
template <class T> void load_v_pairs(void* to, const void* from, i64 stride, int rows, int hdim) {
  const int width = v_copy_stride(hdim);
  for (int d = 0; d < hdim; d += 2 * kLanes) {  // outside, so that the load masks are made once
    const T* p = (const T*)from + d;
    bf16* word = (bf16*)to + 2 * d;
    int i = 0;
    for (; i + 1 < rows; i += 2, p += 2 * stride, word += 2 * width) {
      __builtin_prefetch(word + 8 * width, 1);  // as prefetch_transposed: S = 77 takes 0.93-0.98 of the time
      __builtin_prefetch(word + 8 * width + 32, 1);
      interleave(word, load_halves(p, hdim - d), load_halves(p + stride, hdim - d));
    }
    if (i < rows) interleave(word, load_halves(p, hdim - d), zero_halves());
  }
}
#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
