// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of fmha_mla_decode: plain data, no ISA, no std header, no inline function.
#pragma once

#include "kernels/attention/kv_engine.h"

namespace tilekiln::mla {

using i64 = long long;

constexpr int kMostDims = 576;     // of a row of the cache: 512 of the latent, 64 of the rotary part
constexpr int kFp8RowBytes = 656;  // 512 e4m3, 4 fp32 factors of 128 each, 64 bf16

// The values of the axis dtype.
enum class Storage : unsigned char { fp32, fp16, bf16, bf16_fp8 };
constexpr int kStorages = 4;

// One call, after every check. Strides are in elements of what they step over, bytes where the rows are fp8; the last
// dimension is contiguous. Row r of a sequence is query r / nhead, head r % nhead.
struct Problem {
  const void *q, *cache;
  void* out;   // in the type of q
  float* lse;  // null: not stored
  i64 q_batch, q_row, q_head, cache_page, cache_row, out_batch, out_row, out_head, lse_batch, lse_head;
  const int* table;  // pages of the sequences; null: one page a sequence, of its number
  i64 table_row;
  int batch, seqlen_q, nhead, hdim_q, hdim_v, page_size;
  bool causal;
  Storage storage;
  float softmax_scale;
};

// Rows [row, row + rows) of a sequence over its keys [key_begin, key_end), and where their results lie: row (query, head) at
// out + query out_row + head out_head, lse + head lse_head + query. partial: out is fp32.
struct Unit {
  int batch, row, rows, seqlen_k, key_begin, key_end;
  bool partial;
  void* out;
  i64 out_row, out_head;
  float* lse;  // null: not stored
  i64 lse_head;
};

struct Engine {
  void (*rows[kStorages])(const Problem&, const Unit&, void* scratch);
  void (*combine[kStorages])(const fmha::CombineProblem&, const fmha::CombineUnit&);
  unsigned long long scratch_bytes;  // of rows, aligned to 64
  int tile_rows, tile_keys;          // most rows of a unit; its keys begin at a multiple
};

}  // namespace tilekiln::mla
