// SPDX-License-Identifier: MIT
// Parameters of CUDA's GEMM kernels, their one argument, and what one build of them is made for. Plain data.
#pragma once

#include <cstdint>

#include "kernels/backends/cuda/tensor_map.h"
#include "kernels/backends/cuda/tile/tile_grid.h"
#include "kernels/gemm/gemm/extra.h"

namespace tilekiln::cuda::gemm {

// Bits of Params::features, uniform over a launch.
enum Feature : int {
  kOutFp32 = 1,     // out, c, d0 and d1 are fp32, or out is kOutSums; else of the build's 16 bits
  kWideOut = 2,     // rows of out begin at 16 bytes
  kWideExtras = 4,  // pairs of columns of every extra matrix lie at one address of their size
  kBiasOfRows = 8,
  kGatherA = 16,  // a or b lies where TMA cannot follow, or otherwise than the build has it: element by element
  kGatherB = 32,
  kAligned = 64,      // kWideOut, kWideExtras, and numbers of columns from an address of two on
  kOutSums = 128,     // out is the int32 sums of int8, as they are
  kConstantB = 256,   // no launch that has not ended writes b, nor norm
  kNormRounds = 512,  // rows are rounded before they are multiplied by norm
  kGated = 1024,      // out = activation(alpha a b) (a up)
  kBare = 2048,       // kAligned, and alpha is the whole epilogue
};

using Extra = matrix::DeviceExtra;

// An operand that is gathered. Element [batch b + line l + step s] is of row l of a or column l of b, and s along k.
struct Gathered {
  const uint16_t* data;  // of 8-bit operands bytes
  int64_t batch, line, step;
};

// Factors of blocks of 128 along k: of the L-th row of a, or 128 columns of b, at data[L line + K step] for the K-th.
struct Factors {
  const float* data;
  int64_t line, step;
};

// out[i][j] = activation(alpha row_scale[i] column_scale[j] sum over k of a b + bias, then the extras), i < m, j < n.
struct alignas(128) Params {
  TensorMap a, b;
  Gathered from_a, from_b;
  void* out;
  int64_t out_row, out_batch;  // strides in elements; columns follow each other
  Extra extra[2];
  const float* bias;
  const float* row_scale;
  const float* column_scale;
  float alpha;
  float clamp_min, clamp_max;
  int m, n, k;
  TileGrid grid;
  int a_batches, b_batches;  // 0: all products share the operand
  int activation;            // matrix::Activation
  int features;
  Factors of_a, of_b;    // of blocks, where the build has them
  Gathered from_up;      // of gemm_few_rows: a second b
  const uint16_t* norm;  // and factors of a norm of a's rows, null: none
  float norm_epsilon;
  int products, whole;  // of parts, and the length of a part along k, where the build has them (parts.cu)
};

// The kernels of a build for Hopper: tiles of kTileRows rows, two warpgroups with half of them each. All have stages of
// about as many bytes together. Narrow tiles are of products of few rows: rows that out does not have are not read.
constexpr int kTileRows = 128;
enum class Buffers : int { ring, two, most };  // values of the algorithm axis
struct Form {
  const char* function;
  int columns, stages;
  int boxes;          // through which a warp stores
  int ctas;           // 2: two may share their reads of b
  int splits;         // of k among CTAs of a cluster, at most; 1: none
  int apart;          // columns of 8-bit operands whose sums of a stage are added at once, held beside the tile's
  int consumers = 2;  // warpgroups of 64 rows each
  int deep = 1;       // lines of 128 bytes along k of a stage
  int together = 1;   // CTAs that a processor has room for
  Buffers buffers = Buffers::ring;
  bool turns = false;  // the warpgroups have tiles of 64 rows each, in turns
  [[nodiscard]] constexpr int rows() const { return turns ? 64 : 64 * consumers; }
};
constexpr Form kForms[] = {{"gemm_hopper", 256, 4, 2, 2, 1, 128},
                           {"gemm_hopper_192", 192, 5, 1, 1, 1, 192},
                           {"gemm_hopper_128", 128, 6, 2, 1, 4, 128},
                           {"gemm_hopper_64", 64, 8, 1, 1, 2, 64}};
constexpr int kHalvedColumns = 128;  // of forms that may copy rows of a by halves, at most
constexpr int kFastColumns = 256;    // of gemm_hopper_fast, the first form with sums that the tensor cores keep

// The kernel of few rows (few_rows.h): warps, the stages of a warp's ring, of eight columns of b by 64 along k, and
// tiles of eight columns between two meetings of the warps. Two CTAs of it have room on a processor, so that one launch
// begins under the other.
constexpr int kFewRows = 8, kFewWarps = 8, kFewStages = 9, kFewColumns = 8, kFewDepth = 64, kFewTiles = 2;
constexpr int few_row_bytes(int k) { return (k + kFewDepth - 1) / kFewDepth * kFewDepth * 2 + 64; }
constexpr int64_t few_shared_bytes(int m, int k) {
  const int stages = kFewWarps * kFewStages * kFewColumns * kFewDepth * 2;
  const int sums = 2 * kFewTiles * kFewWarps * kFewRows * kFewColumns * 4;
  return stages + sums + int64_t(m) * few_row_bytes(k);
}

// Threads, and lines and steps along k of a tile of a block; the multiple that parts are filled up to along k.
constexpr int kSplitThreads = 256, kSplitTile = 64, kSplitWhole = 128;
using SplitTile = float[kSplitTile][kSplitTile + 1];

// Parts of bf16 of a line, which has `whole` numbers of each; element [line l + step s] of `data` is s along k.
struct SplitParams {
  const float* data;
  int64_t line, step;
  uint16_t* out;
  int lines, steps, whole, parts;
};

// Constants of a build that the host must know; the cubin holds one as `gemm_build`.
struct Build {
  int rows, columns;  // of a tile, of the largest where there are several
  int steps;          // elements along k of a stage
  int threads;
  int shared_bytes;
  int lines_a, lines_b;  // 1: contiguous from one line to the next; 0: along k
  int fp16;              // out of 16 bits is fp16, else bf16; and so are a and b
  int bytes;             // but where this is a matrix::Dtype of 8 bits, which is that of a and b; else 0
  int groups;            // 1: of rows in groups
  int blocks;            // 1: with factors of blocks, and without the form of 192 columns
  int tiles;             // 1: of tiles that callers name (tiles.h), of products without an epilogue
  int parts;             // 1: of fp32, whose parts its kernel split_parts makes
};

}  // namespace tilekiln::cuda::gemm
