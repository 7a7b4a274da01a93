// One 64 x 64 block of the score matrix: its operands, and what stays the same over a tile.
#pragma once

#include "kernels/attention/cpu/microkernel.h"
#include "kernels/attention/cpu/score.h"
#include "kernels/attention/cpu/softmax.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// What a tile carries from block to block, beside O in scratch.
struct State {
  vf m[kVectors], l[kVectors];  // running maximum and sum of each query
  bool
      started[kVectors];  // O of this vector holds something. Not cleared beforehand: the stores would miss L1 and cost
                          // as much as a third of a block (bf16, D = 64); the first product writes it instead.

  // Makes O of the vectors [begin, end) usable together. False: none of them held anything, so that O may be overwritten.
  TILEKILN_INLINE bool start(int begin, int end, float* o, int rows) {
    bool any = false;
    for (int j = begin; j < end; ++j) any |= started[j];
    for (int j = begin; j < end; ++j) {
      if (any && !started[j]) clear(j, o, rows);
      started[j] = true;
    }
    return any;
  }

  static void clear(int j, float* o, int rows) {
    for (int d = 0; d < rows; ++d) store(o + d * kTileQ + j * kLanes, zero());
  }
};

struct Block {
  Scratch& scratch;
  State& state;
  float c;           // logits to log2 units; with a null stage, scores to log2 units
  ScoreStage stage;  // null: plain
  Score score;
  bool altered;
  Alteration alteration;
  int q_words, o_rows;  // words of a Q row; rows of O^T, a multiple of 4
  Keys keys;
  ValueRows v;
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
