// SPDX-License-Identifier: MIT
// Fills a kernel's fields for the places of sequences from a call's arguments.
#pragma once
#include "kernels/attention/kv/call.h"

namespace tilekiln::fmha {

// The fields of a row that say where sequences are (places.h).
template <class Row>
void fill_places(const KvDevicePlaces& at, const KvPages& pages, Row* row) {
  row->seqstart_q = at.seqstart_q;
  row->seqlen_q = at.seqlen_q;
  row->cu_seqlens_q = at.cu_seqlens_q;
  row->seqlen_k = at.seqlen_k;
  row->cu_seqlens_k = at.cu_seqlens_k;
  row->first_key = at.first_key;
  row->row_k = at.row_k;
  row->table = at.table;
  row->table_at = at.table_at;
  row->table_start = at.table_start;
  row->last_page_len = at.last_page_len;
  row->table_row = at.table_row;
  row->entries = at.entries;
  row->cache_rows = at.rows_k;
  row->pages = at.pages;
  row->more = at.more;
  row->room_k = at.room_k;
  row->total_q = at.total_q;
  row->first_is_start = at.first_is_start ? 1 : 0;
  const bool power = (pages.page_size & (pages.page_size - 1)) == 0;
  row->page_size = pages.page_size;
  row->page_shift = power && pages.page_size > 0 ? __builtin_ctz(static_cast<unsigned>(pages.page_size)) : -1;
}

}  // namespace tilekiln::fmha
