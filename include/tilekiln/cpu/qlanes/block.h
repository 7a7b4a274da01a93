// One 64 x 64 block of the score matrix: its operands, and what stays the same over a tile.
#pragma once

#include "tilekiln/cpu/score.h"
#include "tilekiln/cpu/softmax.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

struct Block {
  Scratch& scratch;
  vf* m;             // running maximum and sum of each query, kVectors of them
  vf* l;
  float c;           // factor inside 2^x: 1 when a score stage has already made log2 units
  ScoreStage stage;  // null: plain
  Score score;
  bool altered;
  Alteration alteration;
  int q_words, o_rows;  // words of a Q row; rows of O^T, a multiple of 4
  const char* k;
  i64 k_stride;  // bytes
  const float* v;
  i64 v_stride;  // words

  template <class Compute> TILEKILN_INLINE float* p() const { return Compute::kWord == 1 ? scratch.s : scratch.p; }
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
