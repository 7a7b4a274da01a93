// When: how many keys a block of decode has, and how far ahead of their use its rows are fetched.
#pragma once

#include "kernels/attention/cpu/dlanes/row_results.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The numbers of a target; those below were measured on Zen 5 and serve all of them.
struct FetchNumbers {
  int few_keys;               // keys of a block that DRAM keeps up with
  i64 heads_bytes;            // side by side, every key head: bytes ahead
  i64 block_bytes;            // the same, head by head: bytes of a block of K, which L2 holds with its V
  i64 head_bytes;             // side by side, one key head: bytes ahead
  int least_rows, most_rows;  // and rows ahead at the same time
  i64 long_bytes;             // a cache that is longer comes from DRAM
  int apart, apart_paged;     // rows apart, one query: rows ahead
  int apart_several;          // several queries, into L2
};
constexpr FetchNumbers kFetchNumbers = {64, 8 << 10, 256 << 10, 16 << 10, 16, 64, 256 << 10, 8, kFetchKeys, 64};

// The fetch plan of a unit. keys: a block has so many; ahead: rows between the row in use and the row being fetched; into: the cache
// where fetched rows wait.
//   rows side by side, one key head     16 KB ahead. With one query head a key head and a long cache, blocks of 64 keys: the
//                                       fetch then lies as deep in V as the product does in K, and DRAM keeps up
//   rows side by side, every key head   8 KB ahead, at least one row
//   the same, head by head              K while the block's V is fetched, V while the next block's K is: each head fetches its
//                                       share of it into L2, in the order of memory
//   rows apart, one query               8 rows ahead (a page's 16 in pages): rows a power of two apart share sets of L1, whose
//                                       ways hold a dozen of them
//   rows apart, several queries         64 rows ahead, into L2: the products take longer than L1 holds a dozen rows
struct Blocks {
  int keys, ahead;
  FetchInto into = FetchInto::l1;
};

inline Blocks blocks_of(const HeadRows& heads, const KvUnit& u, i64 row_bytes, bool apart, bool paged) {
  constexpr FetchNumbers n = kFetchNumbers;
  if (heads.by_head) {
    const i64 rows = n.block_bytes / (row_bytes * heads.heads_k) / kFetchKeys * kFetchKeys;
    const int keys = int(rows < kFetchKeys ? kFetchKeys : rows > kMostKeys ? kMostKeys : rows);
    return {keys, keys, FetchInto::l2};
  }
  if (heads.heads_k > 1) {
    const i64 rows = n.heads_bytes / (row_bytes * heads.heads_k);
    return {n.few_keys, rows >= 4 ? 8 : rows >= 2 || heads.group > 1 ? 2 : 1};
  }
  if (apart && u.rows > 1) return {kMostKeys, n.apart_several, FetchInto::l2};
  if (apart) return {kMostKeys, paged ? n.apart_paged : n.apart};  // so that a FetchRows is of one page
  const i64 rows = n.head_bytes / row_bytes;
  const bool is_long = (u.key_end - u.key_begin) * row_bytes > n.long_bytes;
  return {heads.group == 1 && is_long ? n.few_keys : kMostKeys, int(rows < n.least_rows  ? n.least_rows
                                                                    : rows > n.most_rows ? n.most_rows
                                                                                         : rows)};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
