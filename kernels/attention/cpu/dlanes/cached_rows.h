// SPDX-License-Identifier: MIT
// Addresses of the rows of a cache, in pages or not.
#pragma once

#include "kernels/attention/cpu/dlanes/row_storage.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The rows of K, or of V, of a unit: where each key lies, and copies of rows that the products cannot use there.
class CachedRows {
 public:
  template <bool IsValue>
  static CachedRows of(const RowStorage& storage, const KvProblem& a, const KvUnit& u, int head_k, bool padded,
                       RowScratch& w) {
    CachedRows r{cache_rows<IsValue>(a, u, head_k, storage.kv_bytes)};
    const int hdim = IsValue ? a.hdim_v : a.hdim_q;
    r.hdim_ = hdim;
    r.row_ = i64(storage.kv_bytes) * hdim;
    if (a.pages.table && a.pages.layout == KvLayout::vectorized) {
      r.unpack_ = IsValue ? storage.unpack_v : storage.unpack_k;
      r.chunk_ = storage.kv_bytes * (IsValue ? a.pages.v_chunk : a.pages.k_chunk);
      r.unpacked_ = IsValue ? w.v_rows : w.k_rows;
    }
    if (padded) {
      r.pad_ = IsValue ? storage.pad_v : storage.pad_k;
      r.padded_ = IsValue ? w.v : w.k;
    }
    return r;
  }

  // The addresses of rows in the cache. In vectorized pages a row has no address of its own: each key gets as many bytes of its
  // page, so that fetching all of them fetches the page.
  void find(const char** at, i64 key, int keys) const {
    for (int i = 0; i < keys;) {
      const CacheRows::Run run = rows_.run(key + i, keys - i);
      const i64 row = unpack_ ? row_ : rows_.row;
      const char* const first = run.address + (unpack_ ? run.place * row_ : 0);
      for (int j = 0; j < run.rows; ++j) at[i + j] = first + j * row;
      i += run.rows;
    }
  }

  // The rows that products read: `at` itself, or the addresses of unpacked or padded copies, written to `copies`.
  const char* const* usable(const char* const* at, const char** copies, i64 key, int keys) const {
    if (!unpack_ && !pad_) return at;
    if (unpack_) {
      for (int i = 0; i < keys;) {
        const CacheRows::Run run = rows_.run(key + i, keys - i);
        unpack_(unpacked_ + i * row_, run, chunk_, hdim_);
        i += run.rows;
      }
    }
    for (int i = 0; i < keys; ++i) {
      copies[i] = unpack_ ? unpacked_ + i * row_ : at[i];
      if (!pad_) continue;
      pad_(padded_ + i * kMaxHdim, copies[i], 0, 1, hdim_);
      copies[i] = (const char*)(padded_ + i * kMaxHdim);
    }
    return copies;
  }

 private:
  explicit CachedRows(const CacheRows& rows) : rows_(rows) {}

  CacheRows rows_;
  int hdim_ = 0;
  i64 row_ = 0, chunk_ = 0;  // bytes
  Unpack unpack_ = nullptr;
  LoadRows pad_ = nullptr;
  char* unpacked_ = nullptr;
  float* padded_ = nullptr;
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
