// SPDX-License-Identifier: MIT
// Blocks of K and V in the form that the products take, kept in scratch for the next tiles of the same key head. A block is
// packed when the first tile wants it: V in pairs of keys, narrow types converted, pages gathered, and rows that lie apart laid
// side by side. In (batch, seqlen, nhead, hdim) each row of a head is in another page of memory, and rows 4 or 8 KB apart share few sets
// of the caches: read where they lie, tile after tile, they cost fp32 10-20 % and bf16 4-12 % of the time.
#pragma once

#include "kernels/attention/cpu/qlanes/block.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Tiles that must read a block: for rows that no product can use where they lie, or that share a set of L1, which 16 rows at a time
// do not fit (77 tokens of fp32, 16 heads: 0.95); for rows that push one another out of L1; for rows that could be used. A window of 128 keys
// of 4 heads takes 0.90-0.99 of the time where they lie, of 16 heads, 4 KB apart, 1.03.
constexpr i64 kWorthKeeping = 2, kWorthSpreading = 3, kWorthMoving = 4;
constexpr i64 kPage = 4096;  // bytes; rows so far apart share a set of L1

class Packed {
 public:
  // k_words, v_words: of a block; 0: not packed.
  TILEKILN_INLINE Packed(Scratch& w, const char* k, const char* v, const int* table, i64 first_key, i64 k_words,
                         i64 v_words)
      : head_(w.head), room_(w.packed), k_words_(k_words), words_(k_words + v_words) {
    if (words_ == 0) return;
    places_ = kPackedFloats / words_ < kMostPacked ? int(kPackedFloats / words_) : kMostPacked;
    if (head_.k == k && head_.v == v && head_.table == table && head_.first_key == first_key) return;
    head_.k = k, head_.v = v, head_.table = table, head_.first_key = first_key;
    __builtin_memset(head_.k_blocks, 0, sizeof(i64) * places_);
    __builtin_memset(head_.v_blocks, 0, sizeof(i64) * places_);
  }

  // The place of the block of keys that begins at `key`, packed or to be packed; null: blocks before it have taken all places.
  TILEKILN_INLINE float* k(i64 key) const { return k_words_ && key < places_ * i64(kTileK) ? room(key) : nullptr; }
  TILEKILN_INLINE float* v(i64 key) const {
    return packs_v() && key < places_ * i64(kTileK) ? room(key) + k_words_ : nullptr;
  }
  TILEKILN_INLINE bool packs_v() const { return words_ > k_words_; }
  TILEKILN_INLINE bool has_k(i64 key, int keys) const { return head_.k_blocks[key / kTileK] == id(key, keys); }
  TILEKILN_INLINE bool has_v(i64 key, int keys) const { return head_.v_blocks[key / kTileK] == id(key, keys); }
  TILEKILN_INLINE bool has_both(i64 key, int keys) const {
    return k(key) && v(key) && has_k(key, keys) && has_v(key, keys);
  }
  TILEKILN_INLINE void keep_k(i64 key, int keys) { head_.k_blocks[key / kTileK] = id(key, keys); }
  TILEKILN_INLINE void keep_v(i64 key, int keys) { head_.v_blocks[key / kTileK] = id(key, keys); }

 private:
  static TILEKILN_INLINE i64 id(i64 key, int keys) { return key * (2 * kTileK) + keys; }
  TILEKILN_INLINE float* room(i64 key) const { return room_ + key / kTileK * words_; }

  PackedHead& head_;
  float* room_;
  i64 k_words_, words_;
  int places_ = 0;
};

// The blocks of one key head, whose rows lie a constant stride apart. Pages are gathered by those who know them.
struct HeadBlocks {
  const LoadRows load_k, load_v;  // null: used where it lies, if it is not packed
  const LoadRows move_k, move_v;
  const int hdim_q, hdim_v, word;
  const i64 bytes;               // of an element
  const i64 k_stride, v_stride;  // words of a row of a copy
  Packed packed;

  // k_row, v_row: elements from row to row; 0: not the same everywhere. word: rows of V that share a word. tiles: those of the key head.
  template <class Problem>
  TILEKILN_INLINE HeadBlocks(const Storage& storage, const Problem& a, Scratch& w, const char* k, const char* v,
                             const int* table, i64 first_key, i64 k_row, i64 v_row, int word, i64 tiles)
      : load_k(a.hdim_q % word ? storage.pad_k : storage.load_k),
        load_v(a.hdim_v % 4 ? storage.pad_v : storage.load_v),
        move_k(load_k ? load_k : storage.pad_k),
        move_v(load_v ? load_v : storage.pad_v),
        hdim_q(a.hdim_q),
        hdim_v(a.hdim_v),
        word(word),
        bytes(storage.kv_bytes),
        k_stride(k_copy_stride((a.hdim_q + word - 1) / word)),
        v_stride(v_copy_stride(a.hdim_v)),
        packed(w, k, v, table, first_key, is_packed(load_k, k_row, hdim_q, bytes, tiles) ? kTileK * k_stride : 0,
               is_packed(load_v, v_row, hdim_v, bytes, tiles) ? kTileK / word * v_stride : 0) {}

  // The block of `keys` keys from `key`.
  TILEKILN_INLINE void rows(Block& b, const char* k, i64 k_row, const char* v, i64 v_row, i64 key, int keys) {
    float* const k_to = packed.k(key);
    if (k_to || load_k) {
      float* const to = k_to ? k_to : b.scratch.k;
      if (!k_to || !packed.has_k(key, keys)) move_k(to, k, k_row, keys, hdim_q);
      if (k_to) packed.keep_k(key, keys);
      b.keys = {(const char*)to, 4 * k_stride, keys};
    } else {
      b.keys = {k, k_row * bytes, keys};
    }
    float* const v_to = packed.v(key);
    b.copy.load = nullptr;
    b.fetch_v = {v, v_row * bytes, bytes * hdim_v, keys};
    // A product of V reads a block as often as it has groups of 4 dims. So keys without a place are copied for the tile where their
    // rows would push one another out of L1 (fp32, D = 64, 16 heads: 1.04 in place of 1.14); K is read once.
    const bool collide = v_row * bytes % kPage == 0;
    if (v_to || load_v || collide) {
      float* const to = v_to ? v_to : b.scratch.v;
      if (v_to && packed.has_v(key, keys))
        b.fetch_v = {(const char*)to, 4 * v_stride, 4 * v_stride, (keys + word - 1) / word};
      else
        b.copy = {move_v, to, v, v_row, keys, hdim_v};
      if (v_to) packed.keep_v(key, keys);
      b.v = {to, v_stride};
    } else {
      b.v = {(const float*)v, v_row};
    }
  }

  // The rows of K from `key` on, which come next: those of a block, as far as `end`.
  TILEKILN_INLINE void next(Block& b, const char* k, i64 k_row, i64 key, i64 end) const {
    const i64 left = end > key ? end - key : 0;
    const int keys = left < kTileK ? int(left) : kTileK;
    const float* const to = keys > 0 ? packed.k(key) : nullptr;
    if (to && packed.has_k(key, keys))
      b.fetch_k = {(const char*)to, 4 * k_stride, 4 * k_stride, keys};
    else
      b.fetch_k = {k, k_row * bytes, bytes * hdim_q, keys};
  }

 private:
  static TILEKILN_INLINE bool is_packed(LoadRows load, i64 row, int hdim, i64 bytes, i64 tiles) {
    if (load) return tiles >= kWorthKeeping;
    if (row == hdim) return false;
    const i64 apart = row * bytes;
    return tiles >= (apart % kPage == 0 ? kWorthKeeping : apart % (kPage / 2) == 0 ? kWorthSpreading : kWorthMoving);
  }
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
