// SPDX-License-Identifier: MIT
// Fills the fields of kernels over caches from a call's arguments: the places of sequences, and an append.
#pragma once
#include "kernels/attention/kv/call.h"

namespace tilekiln::fmha {

// The fields of a row that say where sequences are (places.h).
template <class Row>
void fill_places(const KvDevicePlaces& at, const KvPages& pages, Row* row) {
  row->seqstart_q = at.seqstart_q, row->seqlen_q = at.seqlen_q, row->cu_seqlens_q = at.cu_seqlens_q;
  row->seqlen_k = at.seqlen_k, row->cu_seqlens_k = at.cu_seqlens_k;
  row->first_key = at.first_key, row->row_k = at.row_k, row->last_page_len = at.last_page_len;
  row->table = at.table, row->table_at = at.table_at, row->table_start = at.table_start;
  row->table_row = at.table_row, row->entries = at.entries, row->cache_rows = at.rows_k, row->pages = at.pages;
  row->more = at.more, row->room_k = at.room_k, row->total_q = at.total_q;
  row->first_is_start = at.first_is_start ? 1 : 0;
  const bool power = (pages.page_size & (pages.page_size - 1)) == 0;
  row->page_size = pages.page_size;
  row->page_shift = power && pages.page_size > 0 ? __builtin_ctz(static_cast<unsigned>(pages.page_size)) : -1;
}

// The fields of an append's row.
template <class Row>
void fill_append(const AppendKernelProblem& of, Row* row) {
  const AppendProblem& p = of.problem;
  const bool paged = p.pages.page_size != 0;
  fill_places(of.places, p.pages, row);
  row->q = static_cast<decltype(row->q)>(p.q);
  row->k = static_cast<decltype(row->k)>(p.k), row->v = static_cast<decltype(row->v)>(p.v);
  row->knew = static_cast<decltype(row->knew)>(p.knew), row->vnew = static_cast<decltype(row->vnew)>(p.vnew);
  row->q_batch = of.steps.q, row->q_head = p.q_head, row->q_row = p.q_row;
  row->k_page = paged ? p.pages.k_page : of.steps.k, row->k_head = p.k_head, row->k_key = p.k_row;
  row->v_page = paged ? p.pages.v_page : of.steps.v, row->v_head = p.v_head, row->v_key = p.v_row;
  row->knew_batch = of.steps.knew, row->knew_head = p.knew_head, row->knew_row = p.knew_row;
  row->vnew_batch = of.steps.vnew, row->vnew_head = p.vnew_head, row->vnew_row = p.vnew_row;
  row->rotary_cos = p.rotary_cos, row->cos_row = p.rotary_cos_row;
  row->rotary_sin = p.rotary_sin, row->sin_row = p.rotary_sin_row;
  row->positions = of.positions;
  row->rotary_dim = p.rope == Rope::none ? 0 : p.rotary_dim;
  row->interleaved = p.rope == Rope::interleaved ? 1 : 0;
  row->rotary_fp32 = p.rotary_fp32 ? 1 : 0;
  row->q_advances = p.q_advances ? 1 : 0;
  row->seqlen_q_most = of.seqlen_q, row->seqlen_k_most = INT32_MAX, row->seqlen_new = of.seqlen_new;
  row->nhead_q = p.nhead_q, row->nhead_k = p.nhead_k, row->hdim_q = p.hdim_q, row->hdim_v = p.hdim_v;
}

}  // namespace tilekiln::fmha
