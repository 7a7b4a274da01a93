// SPDX-License-Identifier: MIT
// A sequence of the backward and its shares of dq: where they lie, within what arrays hold.
#pragma once
#include "kernels/attention/fmha_bwd/dq_dk_dv/hip/problem.h"
#include "kernels/attention/hip/sequences.h"

namespace tilekiln::hip {

// Numbers that an earlier stage wrote, loaded into registers of the whole wave.
using Scheduled = ConstantMemory<const int>;
using ScheduledLong = ConstantMemory<const i64>;

/// A sequence.
struct Sequence {
  int start_q, start_k, seqlen_q, seqlen_k, shift;
  int room_q;  // its rows, padding included
  i64 row;     // its first row among all sequences
};

/// The rows that a packed sequence has, padding included.
TILEKILN_DEVICE int room(const int* starts, int b, int total) {
  const int rows = start(starts, b + 1, total) - start(starts, b, total);
  return rows < 0 ? 0 : rows;
}

TILEKILN_DEVICE Sequence sequence(const BackwardProblem& p, int b) {
  Sequence s;
  s.seqlen_q = length(p.seqlens_q, p.cu_seqlens_q, b, p.seqlen_q);
  s.seqlen_k = length(p.seqlens_k, p.cu_seqlens_k, b, p.seqlen_k);
  s.start_q = s.start_k = 0;
  s.row = i64(b) * p.seqlen_q, s.room_q = p.seqlen_q;
  if (p.seqstart_q) {
    s.start_q = start(p.seqstart_q, b, p.total_q), s.start_k = start(p.seqstart_k, b, p.total_k);
    s.seqlen_q = s.seqlen_q < p.total_q - s.start_q ? s.seqlen_q : p.total_q - s.start_q;
    s.seqlen_k = s.seqlen_k < p.total_k - s.start_k ? s.seqlen_k : p.total_k - s.start_k;
    s.row = s.start_q, s.room_q = room(p.seqstart_q, b, p.total_q);
    s.seqlen_q = s.seqlen_q < s.room_q ? s.seqlen_q : s.room_q;
  }
  s.shift = p.features & kBwdTopLeft ? 0 : s.seqlen_k - s.seqlen_q;
  return s;
}

/// The shares of a sequence in dq: one a split, of each head.
struct Shares {
  int splits;  // 0: it has no key
  i64 first, step;
};

TILEKILN_DEVICE Shares shares(const BackwardProblem& p, const Sequence& s, int b) {
  const bool group = p.features & kBwdGroupWalk;
  Shares made;
  made.step = i64(s.room_q) * p.hdim_q;
  made.splits = s.seqlen_k == 0 ? 0 : group ? ((Scheduled)p.nsplits)[b] : p.splits;
  made.first = group ? ((ScheduledLong)p.offsets)[b] : s.row * p.nhead_q * p.splits * p.hdim_q;
  return made;
}

/// Row 0 of a share: within dq_acc, whatever numbers index arrays held.
TILEKILN_DEVICE Global<float> share(const BackwardProblem& p, const Shares& of, int h, int split) {
  const i64 at = of.first + (i64(h) * of.splits + split) * of.step;
  return (Global<float>)p.dq_acc + (at < 0 || at > p.acc_elements - of.step ? 0 : at);
}

}  // namespace tilekiln::hip
