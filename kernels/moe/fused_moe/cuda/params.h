// SPDX-License-Identifier: MIT
// Parameters of CUDA's kernels of fused_moe, their one argument each, and sizes that the host shares. Plain data.
#pragma once

#include "kernels/gemm/flatmm_quant/cuda/panel_params.h"
#include "kernels/gemm/grouped_gemm/cuda/params.h"

namespace tilekiln::cuda::moe {

// Rows of x in their order: to[r] = from[tokens[r]], of as many rows as the last tile says there are; behind them those
// of a tile are 0, of `rows` that there is room for. Builds of e4m3 quantise them, 128 numbers by a factor of `scale`.
struct Gather {
  const char* from;
  char* to;
  const int* tokens;
  const RowTile* tiles;
  const int* tile_count;
  long long from_row, to_row, rows;  // bytes of the first two
  int columns;
  float* scale;  // (rows, columns / 128)
};

// Rows of an expert follow each other, in the order of tokens; the rows of experts that are elsewhere are none.
struct Lists {
  const int *topk_ids, *expert_mask, *local_tokens;  // of the last two null: without
  long long ids_row;                                 // elements
  int tokens, topk, all_experts, experts;            // ids count all_experts, `experts` of which are here
  int parts;                                         // of the items, a warp each
  int* counts;                                       // (parts, all_experts), where shared memory does not hold them
  int* places;                                       // (tokens, topk): the row, -1: none
  int* row_tokens;                                   // of each row
  RowTile* tiles;
  int* tile_count;
  int gathers;  // 1: of so few rows that the block gathers them, too
  Gather gather;
};
constexpr int kListThreads = 1024, kSharedCounts = 8192;                     // threads: at most
struct ListMemory { int counts[kSharedCounts], words[kListThreads / 32]; };  // shared

// One of both products: rows [begin, end) of `product.out` are those of a times the expert's b.
struct Rows {
  gemm::GroupParams of;  // of the first expert; without starts, and with bias_step from expert to expert
  const RowTile* tiles;
  const int* tile_count;
  float slope;             // of swiglu
  int swiglu;              // gate and up together, as clamped_swiglu
  long long factors_step;  // of b's, from expert to expert
  float* scale;            // of out of e4m3, (rows, n / 128)
};

// out[token] = the sum over its rows, in their order, of the router's weight times the row of `sums`, whose parts are
// added first.
struct Sums {
  const float *sums, *weights;  // rows sums_row and weights_row elements apart
  const int *places, *local_tokens;
  void* out;
  long long sums_row, weights_row, out_row, part_step;  // from part to part of sums
  int tokens, topk, columns, parts;
};
constexpr int kSumThreads = 128, kSumColumns = 8;  // columns of a thread

// The products' tiles of columns, those of gate and up together.
struct Form { int columns, stages, boxes; };
constexpr Form kForms[] = {{256, 4, 2}, {128, 6, 2}};

}  // namespace tilekiln::cuda::moe
