// SPDX-License-Identifier: MIT
// Parameters of CUDA's products with quantised panels (panels.h), their one argument, and sizes that the host shares.
// Plain data.
#pragma once

#include <cstdint>

#include "kernels/backends/cuda/tensor_map.h"

namespace tilekiln::cuda {

// A tile of at most 128 rows is of one expert, whose rows are [begin, end); `first` is the first tile of these.
struct alignas(16) RowTile { int expert, begin, end, first; };

struct PanelProduct {
  TensorMap x;  // (rows, k)
  const uint8_t *b, *factors;
  int64_t b_step, up_offset, factors_step, up_factors;  // bytes, from expert to expert and from gate to up
  const float* bias;                                    // null: without; up's stands n further
  int64_t bias_step;                                    // elements
  const float* row_scale;                               // null: without
  const float* a_scale;                                 // of rows and groups; null: without
  const void* c;                                        // as out, times beta; null: without
  void* out;
  int64_t out_row, c_row, row_scale_step, a_scale_row, split_step;  // elements; the last from part to part of k
  const RowTile* tiles;                                             // null: `rows` of one weight
  const int* tile_count;
  int rows;
  int n, columns;               // those of panels, and of out
  int k, words, group, groups;  // of a panel
  int panels, across;           // of a matrix; tiles of columns
  int steps, splits;            // stages along k, and parts of them
  int activation, features;     // gemm::kOutFp32, and kWideOut where pairs of columns of out and c lie at their size
  float clamp_min, clamp_max, slope, alpha, beta;
  int swiglu;
};

// Rows as int8, each by a factor of its own: those of x by their tokens, of 16 bits, or one after the other.
struct Narrow {
  const void* from;
  const int* tokens;  // null: row by row
  const RowTile*
      tiles;  // null: `rows` of them; else those that the last tile says, of `rows` that there is room for, and
  const int* tile_count;  // behind those by tokens a tile's, which are 0
  const float* smooth;    // null: without; of an expert, by which its rows are multiplied before
  signed char* to;
  float* scale;
  int64_t from_row, smooth_row, to_row, rows;  // elements, but for the last
  int columns, fp32;                           // columns: a multiple of 4; fp32: from is
};

namespace panels {

constexpr int kTileRows = 128, kDepth = 128;  // along k of a stage
// Rows that are multiplied together, and stages at most.
struct Form { int tokens, stages, together; };  // together: CTAs that a processor has room for
constexpr Form kPanelForms[] = {{16, 10, 2}, {64, 6, 1}, {128, 4, 1}};
constexpr int panel_shared(int form) { return kPanelForms[form].together == 2 ? 114688 : 232448; }
constexpr int kPanelThreads = 384, kNarrowThreads = 128;
constexpr int kOfRows = 7;  // in place of a matrix::Weights: panels of the rows' 16 bits, without factors

}  // namespace panels
}  // namespace tilekiln::cuda
