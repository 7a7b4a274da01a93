// SPDX-License-Identifier: MIT
// Addresses of a cache's rows: in one array, or in pages that a table names (kernels/attention/kv_engine.h says how), in 64 bits.
#pragma once

#include "kernels/attention/cpu/tile.h"
#include "kernels/attention/kv_engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using fmha::KvLayout;
using fmha::KvPages;

constexpr int kChunkBytes = 16;  // of a vectorized cache

// The rows of K, or of V, that belong to one head of one sequence. Strides in bytes.
struct CacheRows {
  const char* base;
  const int* table;  // of the sequence; null: no pages
  unsigned page_size;
  i64 first;  // place of key 0
  i64 page, row;

  struct Run {
    const char* address;  // of the first row
    int place, rows;      // where it lies in its page; how many rows follow in the same page
  };

  // Run of as many of the keys [key, key + count) as lie in the page of the first.
  TILEKILN_INLINE Run run(i64 key, int count) const {
    const u64 place = u64(first + key);
    if (table == nullptr) return {base + i64(place) * row, 0, count};
    const unsigned p = unsigned(place), number = p / page_size, in_page = p % page_size;
    const int rest = int(page_size - in_page);
    return {base + i64(table[number]) * page + i64(in_page) * row, int(in_page), rest < count ? rest : count};
  }
  TILEKILN_INLINE const char* at(i64 key) const { return run(key, 1).address; }
};

TILEKILN_INLINE const int* table_of(const KvPages& pages, i64 offset) {
  return pages.table ? pages.table + offset : nullptr;
}

// The rows of a vectorized page: K is [hdim / vec][page_size][vec], V is [page_size / vec][hdim][vec]. Here `run.address` is that
// of the page and head, since CacheRows::row is 0. To contiguous rows of `hdim`; T is any type of the element's size.
using Unpack = void (*)(void* to, const CacheRows::Run& run, i64 chunk, int hdim);

template <class T> void unpack_keys(void* to, const CacheRows::Run& run, i64 chunk, int hdim) {
  constexpr int kVec = kChunkBytes / int(sizeof(T));
  const char* from = run.address + i64(run.place) * kChunkBytes;
  for (int d = 0; d < hdim; d += kVec, from += chunk) {
    for (int i = 0; i < run.rows; ++i)
      __builtin_memcpy((T*)to + i64(i) * hdim + d, from + i * kChunkBytes, kChunkBytes);
  }
}

// One of 16 bytes of V: kVec keys of a dim. kVec of them to a row each for kVec keys, in log2(kVec) steps that interleave the first half
// of the registers with the second.
template <class T> struct Chunk { typedef T Type __attribute__((vector_size(kChunkBytes))); };

template <bool High> TILEKILN_INLINE Chunk<uint32_t>::Type interleaved(Chunk<uint32_t>::Type a,
                                                                       Chunk<uint32_t>::Type b) {
  return High ? __builtin_shufflevector(a, b, 2, 6, 3, 7) : __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
template <bool High> TILEKILN_INLINE Chunk<uint16_t>::Type interleaved(Chunk<uint16_t>::Type a,
                                                                       Chunk<uint16_t>::Type b) {
  return High ? __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
              : __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
template <bool High> TILEKILN_INLINE Chunk<uint8_t>::Type interleaved(Chunk<uint8_t>::Type a, Chunk<uint8_t>::Type b) {
  return High ? __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
              : __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

template <class T> TILEKILN_INLINE void transpose_chunks(T* to, i64 row, const T* from) {
  constexpr int kVec = kChunkBytes / int(sizeof(T));
  typename Chunk<T>::Type x[kVec], y[kVec];
  __builtin_memcpy(x, from, sizeof x);
  TILEKILN_UNROLL(4) for (int step = 1; step < kVec; step *= 2) {
    TILEKILN_UNROLL(8) for (int i = 0; i < kVec / 2; ++i) {
      y[2 * i] = interleaved<false>(x[i], x[i + kVec / 2]);
      y[2 * i + 1] = interleaved<true>(x[i], x[i + kVec / 2]);
    }
    TILEKILN_UNROLL(16) for (int i = 0; i < kVec; ++i) x[i] = y[i];
  }
  TILEKILN_UNROLL(16) for (int i = 0; i < kVec; ++i) __builtin_memcpy(to + i * row, &x[i], sizeof x[i]);
}

template <class T> void unpack_values(void* to, const CacheRows::Run& run, i64 chunk, int hdim) {
  constexpr int kVec = kChunkBytes / int(sizeof(T));
  for (int i = 0; i < run.rows;) {
    const int place = run.place + i, lane = place % kVec,
              lanes = kVec - lane < run.rows - i ? kVec - lane : run.rows - i;
    const T* from = (const T*)(run.address + i64(place / kVec) * chunk);
    T* row = (T*)to + i64(i) * hdim;
    if (lanes == kVec) {
      int d = 0;
      for (; d + kVec <= hdim; d += kVec) transpose_chunks(row + d, hdim, from + d * kVec);
      for (; d < hdim; ++d) {
        for (int j = 0; j < kVec; ++j) row[i64(j) * hdim + d] = from[d * kVec + j];
      }
    } else {
      for (int d = 0; d < hdim; ++d) {
        for (int j = 0; j < lanes; ++j) row[i64(j) * hdim + d] = from[d * kVec + lane + j];
      }
    }
    i += lanes;
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
