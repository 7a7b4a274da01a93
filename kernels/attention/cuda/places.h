// Where a sequence's queries and keys are: of the numbers in a row, which the host may not have looked at, something that stays
// within the arrays. `Row`: any with these fields.
#pragma once

#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda {

TILEKILN_DEVICE int clamp(int64_t value, int64_t least, int64_t most) { return int(max(min(value, most), least)); }

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
  q.count = min(q.count, p.total_q - q.start);
  return q;
}

struct Keys {
  int first, count;  // the place of key 0, counted from the start of the sequence's cache; keys that are attended to
  int row;           // of a contiguous cache
  int64_t table;     // of page 0 in p.table
};

template <class Row> TILEKILN_DEVICE Keys find_keys(const Row& p, int b) {
  Keys k{0, 0, p.row_k ? clamp(p.row_k[b], 0, p.cache_rows - 1) : b, 0};
  int64_t end = p.room_k, room = p.room_k;
  if (p.table_start) {
    const int64_t begin = clamp(p.table_start[b], 0, p.entries),
                  pages = clamp(p.table_start[b + 1], begin, p.entries) - begin;
    k.table = begin;
    const int last = p.last_page_len ? clamp(p.last_page_len[b], 1, p.page_size) : p.page_size;
    end = pages > 0 ? (pages - 1) * p.page_size + last : 0;
  } else {
    k.table = p.table_at ? p.table_at[b] : k.row * p.table_row;
    if (p.seqlen_k)
      end = int64_t(p.seqlen_k[b]) + p.more;
    else if (p.cu_seqlens_k)
      end = p.cu_seqlens_k[b + 1] - p.cu_seqlens_k[b];
    if (p.first_key) k.first = clamp(p.first_key[b], 0, room);
    if (p.first_is_start) end += k.first;
  }
  k.count = clamp(min(end, room) - k.first, 0, p.seqlen_k_most);
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
  const unsigned said = unsigned(__ldg(p.table + keys.table + at));
  return {int(min(said, unsigned(p.pages - 1))), place - at * p.page_size};
}

}  // namespace tilekiln::cuda
