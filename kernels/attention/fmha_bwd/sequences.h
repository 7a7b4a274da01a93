// The sequences of a backward call with everything their units need, and what their units cost.
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

// What each thread gets when the next piece, the largest first, always goes to the one that is free first.
std::vector<double> claimed(std::vector<double> pieces, int threads);

// Keys of a unit: those of a chunk, or of a half or a quarter of one where few units would leave threads idle. costs(keys):
// what all units of so many keys cost.
int keys_per_unit(int chunk, int threads, const std::function<std::vector<double>(int)>& costs);

}  // namespace tilekiln::fmha
