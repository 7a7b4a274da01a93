// SPDX-License-Identifier: MIT
// The sequences of a backward call with everything their units need, the units of its stages on the host, and what those cost.
#pragma once
#include <functional>
#include <vector>

#include "kernels/attention/fmha_bwd/call.h"

namespace tilekiln::fmha {

// Offsets are in elements. What counts the sequences before it is for arrays that the call makes itself.
struct BwdSequence {
  int batch, seqlen_q, seqlen_k, nsplits;
  i64 physical_q;
  i64 q, k, v, out, dout, lse, dq, dk, dv, dbias, bias, alibi, randval;
  i64 tiles;        // of queries of one head
  i64 acc;          // of its dq_acc
  i64 marks;        // of the bytes of its tiles of dq_acc, (nhead_q, nsplits, tiles)
  i64 keys_before;  // logical
  i64 costs_before;
};

// All sequences of a call, in the order of its batch, without dq_acc and marks; and in `cost` that of every `step` keys of
// each for one head.
void make_sequences(const BwdCall& call, int tile_q, int step, std::vector<BwdSequence>* sequences,
                    std::vector<double>* cost);

// The (query, key) pairs of keys [key, key_end) that a mask leaves.
i64 visible_pairs(const BwdProblem& problem, i64 seqlen_q, i64 seqlen_k, i64 key, i64 key_end);

// The work of each thread when the next piece, the largest first, always goes to the one that is free first.
std::vector<double> claimed(std::vector<double> pieces, int threads);

// Keys of a unit: those of a chunk, or of a half or a quarter of one where few units would leave threads idle. costs(keys):
// what all units of so many keys cost.
int keys_per_unit(int chunk, int threads, const std::function<std::vector<double>(int)>& costs);

// The units of the stages of a call on the host. Indices are those of `sequences`.
struct BwdUnits {
  struct Rows { int sequence, head, row; };  // of the first and the last stage: up to rows_per_unit rows
  struct Keys {
    int sequence, head, key;
  };  // of the main stage: keys_per_unit keys of one query head, or of a group of them

  // The call has its stages.
  explicit BwdUnits(const BwdCall& call);

  int rows_per_unit() const;
  int row_end(const Rows& unit) const;
  // The cost of keys [key, key + keys) of a sequence for one query head.
  double cost_of(const BwdSequence& sequence, int key, int keys) const;
  int chunks_of(const BwdSequence& sequence) const { return (sequence.seqlen_k + shape.tile_k - 1) / shape.tile_k; }
  // The keys of all sequences, times query heads: the rows of dk of each query head apart.
  i64 rows_of_heads() const;

  BwdWorkspaceShape shape;
  BwdWorkspaceLayout layout;
  int step_k;  // keys whose cost is counted together
  int group;   // query heads of a key head
  std::vector<BwdSequence> sequences;
  std::vector<double> cost;
  std::vector<Rows> rows;
  std::vector<Keys> keys;  // those that cost most first; of a deterministic call none: its workers walk
  i64 rows_in_all = 0;     // query rows of all sequences, of one head
  double work = 0;         // multiply-adds of the main stage
  int keys_per_unit;
  bool own_heads = false;  // dk and dv of each query head apart, summed afterwards

 private:
  void list_rows();
  void list_keys(const BwdCall& call);
};

}  // namespace tilekiln::fmha
