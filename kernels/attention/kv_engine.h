// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of attention over a KV cache, one for all its families: plain data, no ISA,
// no std header, no inline function (see fwd_engine.h).
//
// A target has two engines for all of them, kernels/attention/fmha_fwd_splitkv/cpu/qlanes.cpp and dlanes.cpp, one with tiles qtiles.cpp, whose
// units are those of qlanes:
//   qlanes  lanes along queries: many queries. tile_q = 64 rows of one head a unit.
//   dlanes  lanes along the head dim: few queries. A unit is up to tile_q = 16 pairs of a row and a query head, the heads of one
//           key head, which share every load of K and V; or one row and every query head, up to all_heads = 64 of them, so that
//           a cache whose key heads lie side by side is read in one stream. Also combine and append, whose lanes run along
//           the head dim too.
#pragma once

#include "kernels/attention/fwd_engine.h"

namespace tilekiln::fmha {

// q, k, v and out of a call. Biases have the type of out, fp32 for fp8.
enum class KvDtype : unsigned char {
  fp32,
  fp16,
  bf16,
  fp8,       // e4m3 in and out, rounded to nearest even and saturated at +-448
  fp8bf16,   // q, k, v e4m3; out bf16
  bf16_fp8,  // q and out bf16; the cache e4m3
  bf16_bf8,  // q and out bf16; the cache e5m2
};
constexpr int kKvDtypes = 7;

enum class KvLayout : unsigned char {
  linear,  // key, head and page strides as given, the last dimension contiguous
  vectorized,  // vec = 16 bytes. K: [pages, nhead_k, hdim_q / vec, page_size, vec]; V: [pages, nhead_k, page_size / vec, hdim_v, vec]
};

// The layout of a cache. Key j of a unit has place p = unit.first_key + j, and lies at
//   no pages   k + unit.k_offset + head_k * k_head + p * k_row
//   linear     k + table[unit.pages_offset + p / page_size] * k_page + head_k * k_head + (p % page_size) * k_row
//   vectorized k + table[...] * k_page + head_k * k_head + (the rest as the layout says, for hdim_q and hdim_v of this call's cache)
// and v likewise. All products are 64-bit.
struct KvPages {
  const int* table;  // null: no pages
  int page_size;     // > 0, any; vectorized: a multiple of vec
  KvLayout layout;
  i64 k_page, v_page;  // elements from page to page
  i64 k_chunk;  // vectorized: elements from one chunk of vec head dims of K to the next (page_size * vec where packed)
  i64 v_chunk;  // vectorized: elements from one chunk of vec keys of V to the next (hdim_v * vec where packed)
};

// One call of a main stage, after every check. Of FwdProblem: features.dtype is not read; features.qscale is none or pertensor,
// whose null descales count as 1; dropout in qlanes only. k_row and v_row count where the layout is linear.
// An engine function `split` writes fp32 results: out, out_head and out_row are o_acc's and lse, lse_head lse_acc's.
struct KvProblem : FwdProblem {
  KvDtype dtype;
  KvPages pages;
  float out_scale;  // `tile` with an fp8 out: out = saturate(out_scale * O). 1 elsewhere
  // Scales per page and key head, at [page * page_scale_page + head_k * page_scale_head]; null: none. page_size % 64 == 0.
  const float *k_page_scale, *v_page_scale;
  i64 page_scale_page, page_scale_head;
};

// Queries [row, row + rows) of the query heads [head, head + heads), which share one key head, against the keys
// [key_begin, key_end) that they see. rows * heads <= tile_q; qlanes: heads == 1. Or, of all key heads: rows == 1, head == 0,
// heads == nhead_q <= all_heads, k_head == hdim_q and v_head == hdim_v where pages are not vectorized.
struct KvUnit : FwdUnit {
  int rows, heads;
  int key_begin, key_end;  // 0 <= key_begin <= key_end <= seqlen_k. With dropout or page scales: key_begin % 64 == 0
  bool first_split;        // the sink logit enters here: true for exactly one split of each row (split 0)
  i64 pages_offset;        // of this sequence in pages.table
  i64 first_key;           // place of key 0: cache_leftpad, or is_gappy's local offset. With page scales: 0
};

// O = sum_s exp(lse_s - L) O_s,  L = m + ln sum_s exp(lse_s - m),  m = max_s lse_s; L = -inf: O = 0.
// Source: Dao et al., "Flash-Decoding for long-context inference" (2023).
struct CombineProblem {
  KvDtype dtype;  // out's: fp32, fp16, bf16 or fp8 (the others: bf16)
  int nsplits, hdim_v;
  const float *o_acc, *lse_acc;
  i64 o_acc_head, o_acc_split, o_acc_row, lse_acc_head, lse_acc_split;  // elements; rows of lse_acc are contiguous
  void* out;
  i64 out_head, out_row;
  float* lse;  // null: not stored
  i64 lse_head;
  float out_scale;  // fp8: out = saturate(out_scale * O); 1 elsewhere
};

// Rows [row, row_end) of one head; the offsets are of the sequence (element offsets, as in FwdUnit).
struct CombineUnit {
  int head, row, row_end;
  i64 o_acc_offset, lse_acc_offset, out_offset, lse_offset;
};

enum class Rope : unsigned char { none, interleaved, half };

// (x0, x1) -> (x0 cos - x1 sin, x1 cos + x0 sin) for pairs (2i, 2i + 1) or (i, i + rotary_dim / 2): in fp32, every product and
// every sum rounded (no fused multiply-add), then rounded once to the element type. The bits are so the same on every target.
struct AppendProblem {
  KvDtype dtype;  // fp32, fp16, bf16 or fp8 (no rope): q, cache, knew, vnew
  Rope rope;
  int nhead_q, nhead_k, hdim_q, hdim_v;
  int rotary_dim;  // even, <= hdim_q; the other dims are copied. 0 without rope
  void* q;         // rotated in place; null: no queries
  void *k, *v;     // the cache
  const void *knew, *vnew;
  i64 q_head, q_row, k_head, k_row, v_head, v_row, knew_head, knew_row, vnew_head, vnew_row;
  const void *rotary_cos, *rotary_sin;  // [positions, rotary_dim / 2]
  bool rotary_fp32;                     // they are fp32; else of dtype
  i64 rotary_cos_row, rotary_sin_row;
  bool q_advances;  // query i is at position seqlen_k + i; else all are at seqlen_k (no mask)
  // RMS norm of each head of q and of the new keys, as rmsnorm2d, before it is rotated; null: none, as without rope.
  const void *q_gamma, *k_gamma;
  bool gamma_fp32, norm_rounds;  // factors are fp32, else of dtype; x / rms is rounded before it meets them
  float norm_epsilon;
  KvPages pages;  // none, or linear
};

// Some tokens of one sequence, every head. New key j gets key index seqlen_k + j, its place p as in KvPages.
struct AppendUnit {
  int seqlen_k;              // before the append: also the position of the first new key and query
  int q_row, q_row_end;      // queries to rotate
  int new_row, new_row_end;  // new keys to write
  i64 q_offset, knew_offset, vnew_offset, k_offset, v_offset;
  i64 pages_offset, first_key;
};

// The engine of one target for one pipeline. Null where the pipeline or the dtype has no such function.
struct KvEngine {
  void (*tile[kKvDtypes])(const KvProblem&, const KvUnit&, void* scratch);  // out in its dtype, lse where features.lse
  void (*split[kKvDtypes])(const KvProblem&, const KvUnit&,
                           void* scratch);  // o_acc and lse_acc; without a visible key 0 and -inf
  void (*combine[kKvDtypes])(const CombineProblem&, const CombineUnit&);
  void (*append[kKvDtypes])(const AppendProblem&, const AppendUnit&);
  u64 scratch_bytes;   // of tile and split, aligned to 64
  int tile_q, tile_k;  // rows * heads of a unit; keys per block
  int all_heads;       // most heads of a unit of every key head; 0: there is no such unit
};

}  // namespace tilekiln::fmha
