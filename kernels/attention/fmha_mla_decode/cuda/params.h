// SPDX-License-Identifier: MIT
// Parameters of CUDA's kernels of latent attention, their one argument, and sizes that the host shares. Plain data.
#pragma once

#include "kernels/backends/cuda/tensor_map.h"

namespace tilekiln::cuda::mla {

constexpr int kMostDims = 576, kMostValues = 512;        // of a row of the cache, and of them the value
constexpr int kKeys = 64;                                // of a tile
constexpr int kProductRows = 64, kProductThreads = 384;  // of a CTA of latent_products
constexpr int kCombineThreads = 128;                     // as many parts at most; four columns each
static_assert(4 * kCombineThreads >= kMostValues);

// Strides are in elements. Row r of a sequence is query r / nhead, head r % nhead; a split has keys of its own, in
// whole tiles but for the last. With parts results go there, rows after rows of (batch, split).
struct alignas(128) Params {
  TensorMap map;  // of the cache, packed rows (coordinates.h), for latent_products
  const void *q, *cache;
  void* out;
  float* lse;                   // null: not stored
  const int *seqlen_k, *table;  // null: `room` keys; a page a sequence
  float *part_out, *part_lse;   // (batch, splits, rows, part_row), (batch, splits, rows); null where there is one split
  long long q_batch, q_row, q_head, cache_page, cache_row, out_batch, out_row, out_head, lse_batch, lse_head, table_row;
  int batch, seqlen_q, nhead, hdim_q, hdim_v, page_size, pages, room, causal, splits;
  int page_rows, box;  // rows from a page to the next; of one tensor copy, which lie in one page
  int part_row;        // numbers of a row of parts: hdim_v, in whole vectors
  int wide_q;          // rows of q begin at multiples of 16 bytes
  int wide_out;        // likewise whole rows of out, without parts
  float scale;         // of the exponents of 2
};

// Constants of a build that the host must know; the cubin holds one as `latent_build`.
struct Build { int fp16, shared_bytes; };

}  // namespace tilekiln::cuda::mla
