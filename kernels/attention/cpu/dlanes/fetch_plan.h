// SPDX-License-Identifier: MIT
// When: how many keys a block of decode has, and how far ahead of their use its rows are fetched.
#pragma once

#include "kernels/attention/cpu/dlanes/row_results.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The numbers of a target; those below were measured on Zen 5 and serve all of them.
struct FetchNumbers {
  int few_keys;               // keys of a block that DRAM keeps up with
  i64 heads_bytes;            // side by side, every key head: bytes ahead
  int most_of_heads;          // and keys, where each has one row
  i64 several_bytes;          // side by side, one key head of several rows: bytes of K of a block
  int several_keys;           // and keys at least
  int converted_keys;         // the same where rows must be converted, which takes longer than memory
  i64 head_bytes;             // side by side, one key head of one row: bytes ahead
  int least_rows, most_rows;  // and rows ahead at the same time
  i64 long_bytes;             // a cache that is longer comes from DRAM
  int apart, apart_paged;     // rows apart, one query: rows ahead
  int apart_several;          // several queries, into L2
};
constexpr FetchNumbers kFetchNumbers = {
    .few_keys = 64,
    .heads_bytes = 16 << 10,
    .most_of_heads = 8,
    .several_bytes = 8 << 10,
    .several_keys = 32,
    .converted_keys = 64,
    .head_bytes = 16 << 10,
    .least_rows = 16,
    .most_rows = 64,
    .long_bytes = 256 << 10,
    .apart = 8,
    .apart_paged = kFetchKeys,
    .apart_several = 64,
};

// The fetch plan of a unit. keys: a block has so many; ahead: rows between the row in use and the row being fetched; into: the cache
// where fetched rows wait.
//   rows side by side, one key head     of one row 16 KB ahead; with a long cache, blocks of 64 keys: the fetch then lies as deep
//                                       in V as the product does in K, and DRAM keeps up. Of several rows the block's V while its
//                                       K is used, the next K while V is: three blocks are within L1, and lines are asked for in
//                                       the order of memory, though the product with V reads half of every row, then the other
//   rows side by side, every key head   16 KB ahead, in the order of memory, in which V is multiplied in steps of as many keys, too: L1
//                                       holds those, as many ahead and O. Twice as much of several rows a head where O is large or
//                                       rows must be converted
//   rows apart, one query               8 rows ahead (a page's 16 in pages): rows a power of two apart share sets of L1, whose
//                                       ways hold a dozen of them
//   rows apart, several queries         64 rows ahead, into L2: the products take longer than L1 holds a dozen rows
struct Blocks {
  int keys, ahead;
  FetchInto into = FetchInto::l1;
  bool in_a_row = false;  // rows of a block are one step apart; those of one block are fetched while another is used
};

// fast: rows are multiplied as they are stored, or as pairs.
inline Blocks blocks_of(const HeadRows& heads, const KvUnit& u, i64 row_bytes, bool apart, bool paged, bool fast) {
  constexpr FetchNumbers n = kFetchNumbers;
  if (heads.heads_k > 1) {
    const bool several = heads.group > 1, twice = several && (!fast || heads.heads_k * heads.group > 32);
    const i64 rows = (twice ? 2 : 1) * n.heads_bytes / (row_bytes * heads.heads_k);
    const int most = several ? kFetchKeys : n.most_of_heads;  // at most a page's
    int ahead = several ? kHeadKeys : 1;
    while (2 * ahead <= rows && 2 * ahead <= most) ahead *= 2;
    return {several ? kMostKeys : n.few_keys, ahead};
  }
  if (apart && u.rows > 1) return {kMostKeys, n.apart_several, FetchInto::l2};
  if (apart) return {kMostKeys, paged ? n.apart_paged : n.apart};  // so that a FetchRows is of one page
  if (heads.group > 1) {
    const i64 least = fast ? n.several_keys : n.converted_keys,
              rows = n.several_bytes / row_bytes / kFetchKeys * kFetchKeys;
    const int keys = int(rows < least ? least : rows > kMostKeys ? kMostKeys : rows);
    return {keys, keys, FetchInto::l1, !paged};
  }
  const i64 rows = n.head_bytes / row_bytes;
  const bool is_long = (u.key_end - u.key_begin) * row_bytes > n.long_bytes;
  return {is_long ? n.few_keys : kMostKeys, int(rows < n.least_rows  ? n.least_rows
                                                : rows > n.most_rows ? n.most_rows
                                                                     : rows)};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
