// SPDX-License-Identifier: MIT
// One 64 x 64 block of the score matrix: its operands, and what stays the same over a tile.
#pragma once

#include "kernels/attention/cpu/microkernel.h"
#include "kernels/attention/cpu/score.h"
#include "kernels/attention/cpu/softmax.h"
#include "kernels/attention/cpu/storage.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Functions and sizes that depend on the storage type.
struct Storage {
  LoadQ load_q;
  LoadRows load_k, load_v;  // null: K (V) is broadcast from where it lies
  LoadRows pad_k, pad_v;    // used instead when hdim_q is no multiple of the word, or hdim_v none of 4
  StoreOut store_out;
  ScoreStage bias;
  int q_bytes, kv_bytes, out_bytes, bias_bytes;  // of an element
};

// The state that a tile carries from block to block, beside O in scratch.
struct State {
  vf m[kVectors], l[kVectors];  // running maximum and sum of each query
  vf shift[kVectors];           // fl(c m)
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

// V of the block, not yet in the form that the product takes.
struct ValueCopy {
  LoadRows load = nullptr;  // null: it is
  float* to;
  const char* from;
  i64 row;
  int keys, hdim;

  TILEKILN_INLINE void run() const {
    if (load) load(to, from, row, keys, hdim);
  }
};

// Rows that L2 is asked for, some at a time: where nothing converts or moves them, and a prefetcher that follows a stream has lost it at
// the end of a page, fp32 takes 0.93-0.98 of the time.
struct FetchedRows {
  const char* row;
  i64 stride, width;  // bytes
  int count = 0;

  // Write: 1 where they will be written.
  template <int Write = 0> TILEKILN_INLINE void fetch(int begin, int end) const {
    if (end > count) end = count;
    for (int i = begin; i < end; ++i) {
      for (i64 byte = 0; byte < width; byte += 64) __builtin_prefetch(row + i * stride + byte, Write, 2);
    }
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
  ValueCopy copy;
  FetchedRows fetch_v, fetch_k;    // of this block; of the next one
  FetchedRows fetch_q, fetch_out;  // of the next tile; of this one
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
