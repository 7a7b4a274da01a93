// SPDX-License-Identifier: MIT
// The forward's keys in a KV cache: contiguous or paged, and of them only the range of one split. A block of keys is used where
// it lies, a page after the other; where it must be converted, or a page begins or ends inside a group of keys, the load stages
// gather it into scratch.
#pragma once

#include "kernels/attention/cpu/paging.h"
#include "kernels/attention/cpu/qlanes/keys.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using fmha::KvProblem;
using fmha::KvUnit;

struct CacheStorage : Storage {
  Unpack unpack_k, unpack_v;  // vectorized pages
};

struct CacheScratch : Scratch {
  alignas(64) char k_rows[kTileK * kMaxHdim * 4],
      v_rows[kTileK * kMaxHdim * 4];                    // rows of a vectorized page, as stored
  const char *k_runs[kTileK / 4], *v_runs[kTileK / 4];  // pages of a block
};

TILEKILN_INLINE float descale(const float* p) { return p ? *p : 1.f; }

// Scales of a whole unit, in lanes along queries and along the head dim alike.
TILEKILN_INLINE Descales cache_descales(const KvProblem& a, const KvUnit& u, int head_k) {
  Descales d;
  d.v = a.out_scale;
  if (a.features.qscale == Qscale::pertensor) {
    d.q = descale(a.q_descale) * descale(a.k_descale);
    d.v *= descale(a.v_descale);
  }
  if (a.k_page_scale) {
    d.k = a.k_page_scale + head_k * a.page_scale_head;
    d.v_blocks = a.v_page_scale + head_k * a.page_scale_head;
    d.keys = a.pages.page_size;
    d.table = table_of(a.pages, u.pages_offset);
    d.stride = a.page_scale_page;
  }
  return d;
}

// K's or V's rows of the unit's key head. Vectorized: addresses of pages.
template <bool IsValue> TILEKILN_INLINE CacheRows cache_rows(const KvProblem& a, const KvUnit& u, int head_k,
                                                             i64 bytes) {
  const bool linear = a.pages.table == nullptr || a.pages.layout == KvLayout::linear;
  const i64 offset = IsValue ? u.v_offset + head_k * a.v_head : u.k_offset + head_k * a.k_head;
  return {(const char*)(IsValue ? a.v : a.k) + bytes * offset,
          table_of(a.pages, u.pages_offset),
          unsigned(a.pages.page_size),
          u.first_key,
          bytes * (IsValue ? a.pages.v_page : a.pages.k_page),
          linear ? bytes * (IsValue ? a.v_row : a.k_row) : 0};
}

class CacheKeys {
 public:
  TILEKILN_INLINE CacheKeys(const CacheStorage& storage, const KvProblem& a, const KvUnit& u, int head_k,
                            CacheScratch& w, int word)
      : a_(a),
        storage_(storage),
        w_(w),
        k_(cache_rows<false>(a, u, head_k, storage.kv_bytes)),
        v_(cache_rows<true>(a, u, head_k, storage.kv_bytes)),
        end_(u.key_end),
        word_(word),
        blocks_(storage, a, w, k_.base, v_.base, k_.table, k_.first, k_.table ? 0 : a.k_row, v_.table ? 0 : a.v_row,
                word, tiles_of_head(a, u)) {}

  static i64 begin(const KvUnit& u) { return u.key_begin; }
  static i64 end(const KvUnit& u) { return u.key_end; }
  static bool has_sink(const KvUnit& u) { return u.first_split; }
  static Descales descales(const KvProblem& a, const KvUnit& u, int head_k) { return cache_descales(a, u, head_k); }
  static void prefetch(i64, int) {}  // pages lie apart; the gain is the plain forward's, on short sequences

  void block(Block& b, i64 key, int keys, i64 end) {
    b.copy.load = nullptr;
    b.fetch_k.count = b.fetch_v.count = 0;
    const CacheRows::Run k = k_.run(key, keys), v = v_.run(key, keys);
    if (a_.pages.table && a_.pages.layout == KvLayout::vectorized) return vectorized_block(b, key, keys);
    if (k.rows < keys) return paged_block(b, key, keys);
    blocks_.rows(b, k.address, a_.k_row, v.address, a_.v_row, key, keys);
    if (!k_.table) blocks_.next(b, k.address + keys * k_.row, a_.k_row, key + keys, end);
  }

 private:
  void paged_block(Block& b, i64 key, int keys) {
    const int page = a_.pages.page_size;
    const bool in_place = (u64(k_.first + key) % unsigned(page) | unsigned(page) % 4) == 0;
    Packed& packed = blocks_.packed;
    float *const k_to = packed.k(key), *const v_to = packed.v(key);
    if (in_place && !blocks_.load_k && !k_to) {
      b.keys = {nullptr, k_.row, keys, runs_of(k_, w_.k_runs, key, keys), page};
    } else {
      float* const to = k_to ? k_to : w_.k;
      if (!k_to || !packed.has_k(key, keys))
        gather(k_, storage_.pad_k, (char*)to, 4 * blocks_.k_stride, key, keys, a_.k_row, a_.hdim_q, 1);
      if (k_to) packed.keep_k(key, keys);
      b.keys = {(const char*)to, 4 * blocks_.k_stride, keys};
    }
    if (in_place && !blocks_.load_v && !v_to) {
      b.v = {nullptr, a_.v_row, runs_of(v_, w_.v_runs, key, keys), page};
    } else {
      float* const to = v_to ? v_to : w_.v;
      if (!v_to || !packed.has_v(key, keys))
        gather(v_, storage_.pad_v, (char*)to, 4 * blocks_.v_stride, key, keys, a_.v_row, a_.hdim_v, word_);
      if (v_to) packed.keep_v(key, keys);
      b.v = {to, blocks_.v_stride};
    }
  }

  // The address at which each page of the block begins.
  const char* const* runs_of(const CacheRows& rows, const char** runs, i64 key, int keys) const {
    for (int i = 0, page = 0; i < keys; i += a_.pages.page_size) runs[page++] = rows.at(key + i);
    fetch_rows_from(rows, key + keys);
    return runs;
  }

  // Asks L2 for the first line of each row of the block at `key`: no prefetcher knows where a page follows, but of a row it then
  // fetches the rest (page size 16 and (batch, seqlen, nhead, hdim), fp32, nhead_k = 8: 1.07 in place of 1.13 of a contiguous
  // cache's time; whole rows: the same).
  void fetch_rows_from(const CacheRows& rows, i64 key) const {
    const int keys = end_ - key < kTileK ? int(end_ - key) : kTileK;
    for (int i = 0; i < keys; i += a_.pages.page_size) {
      const CacheRows::Run run = rows.run(key + i, keys - i);
      prefetch_rows(run.address, rows.row, run.rows, 1);
    }
  }

  // `word` rows share a row of the copy, `width` bytes wide: V's pairs of keys. A pair across two pages is two rows with the
  // distance between them as their stride.
  void gather(const CacheRows& rows, LoadRows load, char* to, i64 width, i64 key, int keys, i64 stride, int hdim,
              int word) const {
    for (int i = 0; i < keys;) {
      CacheRows::Run run = rows.run(key + i, keys - i);
      if (i + run.rows < keys) run.rows -= run.rows % word;
      if (run.rows > 0) {
        load(to + i / word * width, run.address, stride, run.rows, hdim);
        i += run.rows;
      } else {
        load(to + i / word * width, run.address, (rows.at(key + i + 1) - run.address) / storage_.kv_bytes, 2, hdim);
        i += 2;
      }
    }
  }

  void vectorized_block(Block& b, i64 key, int keys) {
    const i64 bytes = storage_.kv_bytes;
    const bool there = blocks_.packed.has_both(key, keys);
    for (int i = 0; i < keys && !there;) {
      const CacheRows::Run k = k_.run(key + i, keys - i), v = v_.run(key + i, keys - i);
      storage_.unpack_k(w_.k_rows + i * bytes * a_.hdim_q, k, bytes * a_.pages.k_chunk, a_.hdim_q);
      storage_.unpack_v(w_.v_rows + i * bytes * a_.hdim_v, v, bytes * a_.pages.v_chunk, a_.hdim_v);
      i += k.rows;
    }
    blocks_.rows(b, w_.k_rows, a_.hdim_q, w_.v_rows, a_.hdim_v, key, keys);
    b.fetch_v.count = 0;
  }

  const KvProblem& a_;
  const CacheStorage& storage_;
  CacheScratch& w_;
  CacheRows k_, v_;
  i64 end_;
  int word_;
  HeadBlocks blocks_;
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
