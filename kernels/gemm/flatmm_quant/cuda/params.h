// SPDX-License-Identifier: MIT
// Parameters of CUDA's products with packed words, their one argument, and what the build is made for. Plain data.
#pragma once

#include "kernels/gemm/engine.h"

namespace tilekiln::cuda::words {

struct Words {
  matrix::Grouped of;
  int panels, words, groups;
  // Fields of few rows alone: rows of a CTA; rows of factors of a chunk, or a shift of chunks to their group; steps of
  // 32 numbers with one, less 1.
  int rows, factor_rows, group_shift, group_mask;
  bool gated;
};
// A block has kColumns columns of a panel; its warps share k: few where processors have several blocks, else many.
constexpr int kPanel = matrix::kPanelLanes, kColumns = 32, kRows = 16, kFewWarps = 8, kManyWarps = 16;

// The kernels of up to 8 rows (few_words.h), one of each kind of weights: chunks of a warp, and the stages of its ring.
enum class Kind { int4, int8, fp8 };
constexpr int kWarps = 8, kFewRows = 8, kStages = 5, kChunkBytes = 2048;
constexpr int per_word(Kind kind) { return kind == Kind::int4 ? 8 : kind == Kind::int8 ? 4 : 2; }
constexpr int chunk_depth(Kind kind) { return kind == Kind::int4 ? 128 : 64; }
constexpr int row_bytes(Kind kind, int k) {
  const int depth = chunk_depth(kind);
  return (k + depth - 1) / depth * depth * 2 + 64;
}
constexpr int64_t few_shared_bytes(Kind kind, int factor_rows, int rows, int k) {
  const int sums = kWarps * kFewRows * (kColumns + 1) * 4;
  return sums + kWarps * kStages * (kChunkBytes + factor_rows * 128) + int64_t(rows) * row_bytes(kind, k);
}
constexpr int64_t kMostShared = 232448;

// Constants of a build that the host must know; the cubin holds one as `words_build`.
struct Build {
  int fp16;
  int panels;  // 0: the kernels of few rows; else one more than the matrix::Weights of those of panels.h
  int narrow;  // whose rows are int8
};

}  // namespace tilekiln::cuda::words
