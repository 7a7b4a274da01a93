// SPDX-License-Identifier: MIT
// Places of a sequence's queries and keys: of the numbers in a row, which the host may not have looked at, something that stays
// within the arrays. Compiled for devices: its includer defines TILEKILN_DEVICE, the words that a function of the device begins with,
// and TILEKILN_READ_ONLY(pointer), a load of what no kernel writes meanwhile. `Row`: any with the fields of KvDevicePlaces (kv/call.h)
// that are named here.
#pragma once

namespace tilekiln::fmha {

using i64 = long long;

TILEKILN_DEVICE int clamp(i64 value, i64 least, i64 most) {
  return int(value < least ? least : value > most ? most : value);
}

/// The queries of a sequence.
struct Queries {
  int start;  // in packed tensors; 0 else
  int count;
};

template <class Row> TILEKILN_DEVICE Queries find_queries(const Row& p, int b) {
  const int said = p.seqlen_q       ? p.seqlen_q[b]
                   : p.cu_seqlens_q ? p.cu_seqlens_q[b + 1] - p.cu_seqlens_q[b]
                                    : p.seqlen_q_most;
  Queries q{0, clamp(said, 0, p.seqlen_q_most)};
  if (p.seqstart_q == nullptr) return q;
  q.start = clamp(p.seqstart_q[b], 0, p.total_q);
  if (q.count > p.total_q - q.start) q.count = p.total_q - q.start;
  return q;
}

struct Keys {
  int first, count;  // the place of key 0, counted from the start of the sequence's cache; keys that are attended to
  int row;           // of a contiguous cache
  i64 table;         // of page 0 in p.table
};

template <class Row> TILEKILN_DEVICE Keys find_keys(const Row& p, int b) {
  Keys k{0, 0, p.row_k ? clamp(p.row_k[b], 0, p.cache_rows - 1) : b, 0};
  i64 end = p.room_k, room = p.room_k;
  if (p.table_start) {
    const i64 begin = clamp(p.table_start[b], 0, p.entries),
              pages = clamp(p.table_start[b + 1], begin, p.entries) - begin;
    k.table = begin;
    const int last = p.last_page_len ? clamp(p.last_page_len[b], 1, p.page_size) : p.page_size;
    end = pages > 0 ? (pages - 1) * p.page_size + last : 0;
  } else {
    k.table = p.table_at ? p.table_at[b] : k.row * p.table_row;
    if (p.seqlen_k)
      end = i64(p.seqlen_k[b]) + p.more;
    else if (p.cu_seqlens_k)
      end = p.cu_seqlens_k[b + 1] - p.cu_seqlens_k[b];
    if (p.first_key) k.first = clamp(p.first_key[b], 0, room);
    if (p.first_is_start) end += k.first;
  }
  k.count = clamp((end < room ? end : room) - k.first, 0, p.seqlen_k_most);
  return k;
}

// The page that holds a place, counted along the sequence, and the place in it.
struct Page {
  int number;  // in the pool; of a contiguous cache the sequence's row
  int key;
};

template <class Row> TILEKILN_DEVICE Page find_page(const Row& p, const Keys& keys, int place) {
  if (p.table == nullptr) return {keys.row, place};
  const int at = p.page_shift >= 0 ? place >> p.page_shift : place / p.page_size;
  const unsigned said = unsigned(TILEKILN_READ_ONLY(p.table + keys.table + at));
  return {said < unsigned(p.pages) ? int(said) : p.pages - 1, place - at * p.page_size};
}

}  // namespace tilekiln::fmha
