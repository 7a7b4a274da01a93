// Where the rows of a cache lie: in one array, or in pages that a table names (fmha/kv_engine.h says how). Addressing is 64-bit.
#pragma once

#include "tilekiln/cpu/tile.h"
#include "tilekiln/fmha/kv_engine.h"

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

  // As many of the keys [key, key + count) as lie in the page of the first.
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

template <class T> void unpack_values(void* to, const CacheRows::Run& run, i64 chunk, int hdim) {
  constexpr int kVec = kChunkBytes / int(sizeof(T));
  for (int i = 0; i < run.rows;) {
    const int place = run.place + i, lane = place % kVec,
              lanes = kVec - lane < run.rows - i ? kVec - lane : run.rows - i;
    const T* from = (const T*)(run.address + i64(place / kVec) * chunk);
    T* row = (T*)to + i64(i) * hdim;
    if (lanes == kVec) {
      for (int d = 0; d < hdim; ++d) {
        TILEKILN_UNROLL(16) for (int j = 0; j < kVec; ++j) row[i64(j) * hdim + d] = from[d * kVec + j];
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
