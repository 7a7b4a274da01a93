// The row of the CUDA decode over a paged KV cache: the one argument of its two kernels.
//
// Plain data. tools/gpu reads the fields of `Row` and `Build` from this text, so a declaration is one line.
#pragma once

#include <cstdint>

namespace tilekiln::cuda::fmha_decode {

// One query row a sequence and head. Pages lie anywhere; every offset has 64 bits.
struct Row {
  const uint16_t* q;
  const uint16_t* k;
  const uint16_t* v;
  const int* table;        // pages of sequence b from b table_row, or from table_start[b] where that is given
  const int* table_start;  // (batch + 1) or null
  const int* seqlen_k;     // (batch); or null: the table's pages, the last one of last_page_len[b] keys
  const int* last_page_len;
  float* part_out;  // [b nhead_q + h][splits][hdim]: of each split, normalised
  float* part_lse;  // [b nhead_q + h][splits]: log2; -inf for a split without keys
  uint16_t* out;
  float* lse;               // (batch, nhead_q) or null
  int64_t q_batch, q_head;  // strides in elements
  int64_t out_batch, out_head;
  int64_t k_page, k_head, k_key, k_chunk;  // k_chunk: of eight neighbours in the head dim
  int64_t v_page, v_head, v_key, v_chunk;  // vectorized: v_chunk of eight neighbouring keys, v_key in the head dim
  int table_row;
  int nhead_q, nhead_k;
  int page_shift;  // log2 of the keys of a page
  int splits;
  float score_scale_log2;  // softmax_scale log2(e)
};

// What the host must know of a build; the cubin holds one as `fmha_decode_build`.
struct Build {
  int hdim;
  int group;  // the most query heads that share a key head
  int threads;
  int shared_bytes;
};

}  // namespace tilekiln::cuda::fmha_decode
