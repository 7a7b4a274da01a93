// SPDX-License-Identifier: MIT
// Common parts of attention calls of every direction, on their way from arguments to units.
#pragma once
#include "kernels/attention/fwd_engine.h"
#include "kernels/runtime/array.h"
#include "kernels/runtime/dispatch.h"
#include "kernels/runtime/owned.h"
#include "kernels/runtime/run.h"
#include "kernels/runtime/small_array.h"

namespace tilekiln {
class CallMemory;  // runtime/launch.h
}

namespace tilekiln::fmha {

// Queries and keys per scale of qscale=blockscale.
constexpr int scale_block = 128;
// Longest sequence: row + seqlen_k + window then stays within an int.
constexpr int max_seqlen = 1 << 29;

// Index arrays by name; absent ones have none. Block scales are of the forward only.
struct IndexArrays {
  Array seqstart_q, seqstart_k, seqlen_q, seqlen_k, cu_seqlens_q, cu_seqlens_k, block_scale_seqstart_q,
      block_scale_seqstart_k;
};

// A place is what the step of an array is multiplied by to find the sequence in it: the batch index in batch mode, the
// physical start (of scales: the first block) in group mode. Room is what lies between it and the next.
struct Sequence {
  int batch, seqlen_q, seqlen_k;
  i64 place_q, place_k, place_scale_q, place_scale_k;
  i64 room_q, room_k;
  i64 first_unit;
};

// Indices in the Query of every operator's main stage; static_asserts compare them with the generated headers.
constexpr int want_hdim_q = 0, want_hdim_v = 1, size_seqlen_q = 0;

// Block scales of group mode: the blocks there are in q_descale and k_descale.
struct ScaleBlocks { i64 q, k; };

// Index arrays that stay on the device until the call runs, and what else check_sequences takes.
struct UnreadArrays {
  IndexArrays arrays;
  bool group, scaled;
  i64 physical_q, physical_k;
  ScaleBlocks scales;
};

struct AttentionCall : Run {
  static constexpr bool launches_kernels = true;
  Query query = {};
  Choice choice;
  int batch = 0;
  int seqlen_q = 0, seqlen_k = 0;  // the longest logical lengths
  bool uniform = false;            // every sequence has these lengths, and `sequences` is empty
  SmallArray<Sequence, 16> sequences;
  bool unread = false;  // the lengths are at most seqlen_q and seqlen_k, and `on_device` says more
  Owned<UnreadArrays> on_device;
  tilekiln_stream* stream = nullptr;
};

// The logical lengths and places of every sequence, from the index arrays. `scales`: null without block scales in group
// mode.
[[nodiscard]] tilekiln_status check_sequences(const IndexArrays& arrays, bool group, i64 physical_q, i64 physical_k,
                                              const ScaleBlocks* scales, AttentionCall* call);

// Checks with the arguments max_seqlen_q and max_seqlen_k, 0 and 0 or no less than the longest lengths: where the arrays stay on
// a device (call->unread) only their shapes are looked at.
[[nodiscard]] tilekiln_status check_sequences_within(const IndexArrays& arrays, bool group, i64 physical_q,
                                                     i64 physical_k, const ScaleBlocks* scales, int max_seqlen_q,
                                                     int max_seqlen_k, AttentionCall* call);
// Reads the arrays of an unread call whose turn has come, for engines on the host.
[[nodiscard]] tilekiln_status read_sequences(AttentionCall* call);
// Places the lengths of a call whose turn has come, for kernels: the arrays where they are, or, of those that the host has read, copies
// in `memory`.
[[nodiscard]] tilekiln_status place_lengths(const AttentionCall& call, bool group, CallMemory* memory,
                                            DeviceLengths* lengths);

// The arguments max_seqlen_q and max_seqlen_k go together.
[[nodiscard]] tilekiln_status check_longest_given(int max_seqlen_q, int max_seqlen_k);
// Checks that no sequence is longer than the argument `name` says; 0: it says nothing.
[[nodiscard]] tilekiln_status check_longest(const char* name, int given, int longest);

// The queries' half of it: every sequence has its place and length of q, none of k, and `sequences` is filled whether
// or not all are alike; of an unread call, only the shapes of the arrays are looked at.
[[nodiscard]] tilekiln_status check_queries(const IndexArrays& arrays, bool group, i64 physical_q, AttentionCall* call);

}  // namespace tilekiln::fmha
