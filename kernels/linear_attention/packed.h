// SPDX-License-Identifier: MIT
// Sequences packed in one row of tokens, and the problem of a call with where they begin.
#pragma once
#include "kernels/runtime/array.h"
#include "kernels/runtime/small_array.h"

namespace tilekiln::linear_attention {

template <class Problem> struct Packed {
  Problem one;
  SmallArray<int32_t, 17> starts;  // as long as the call; empty: each batch is a sequence
  int64_t sequences, longest;      // tokens of the longest

  // The problem, which points to the starts where this lies now.
  const Problem& placed() {
    starts_of(one) = starts.size() > 0 ? starts.begin() : nullptr;
    return one;
  }
};

// Reads cu_seqlens, which may be absent, of a call of so many tokens in a batch that `name` says.
template <class Problem>
[[nodiscard]] tilekiln_status read_starts(const Array& from, const char* name, int64_t batch, int64_t tokens,
                                          Packed<Problem>& to) {
  to.sequences = batch, to.longest = tokens;
  if (!from.given()) return TILEKILN_OK;
  if (batch != 1)
    return fail_argument(name, "batch was %lld, must be 1 with cu_seqlens, whose sequences lie in one row of tokens",
                         static_cast<long long>(batch));
  const int64_t count = from.shape[0];
  const auto* const entries = reinterpret_cast<const int32_t*>(from.data);
  to.starts.reset(static_cast<size_t>(count));
  to.sequences = count - 1, to.longest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t start = entries[i * from.stride[0]], before = i > 0 ? to.starts[static_cast<size_t>(i - 1)] : 0;
    if (i == 0 && start != 0) return fail_argument("cu_seqlens", "entry 0 was %d, must be 0, the first token", start);
    if (start < before)
      return fail_argument("cu_seqlens", "entry %lld was %d, must be at least %d, the one before",
                           static_cast<long long>(i), start, before);
    if (start - before > to.longest) to.longest = start - before;
    to.starts[static_cast<size_t>(i)] = start;
  }
  const int32_t end = to.starts[static_cast<size_t>(count - 1)];
  if (end != tokens)
    return fail_argument("cu_seqlens", "entry %lld was %d, must be %lld, the seqlen of %s",
                         static_cast<long long>(count - 1), end, static_cast<long long>(tokens), name);
  return TILEKILN_OK;
}

}  // namespace tilekiln::linear_attention
