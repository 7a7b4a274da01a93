// SPDX-License-Identifier: MIT
// The keys that a row may see, on the host: from the arguments of a call to its problem, and counted for the order and the cost of
// units. The engines' part is window.h.
#pragma once
#include "kernels/attention/call.h"

namespace tilekiln::fmha {

// Beyond max_seqlen a window is unbounded; cut there so that no sum of positions leaves an int.
inline int cut_window(int32_t value) { return value > 2 * max_seqlen - 1 ? 2 * max_seqlen - 1 : value; }

template <class Args, class Problem>
void fill_mask(const Args& args, Problem& problem) {
  problem.window_left = cut_window(args.window_left);
  problem.window_right = args.causal != 0 ? 0 : cut_window(args.window_right);
  problem.top_left = args.mask_origin == TILEKILN_TOP_LEFT;
  problem.sink_keys = args.window_left >= 0 ? cut_window(args.sink_size) : 0;
}

// Sink columns change nothing when every key to the left is visible anyway.
template <class Args>
bool has_sink(const Args& args) {
  return args.sink != nullptr || (args.sink_size > 0 && args.window_left >= 0);
}

// The keys that row `row` of a sequence sees, for a problem of either direction.
template <class Problem>
i64 visible_keys(const Problem& problem, i64 seqlen_q, i64 seqlen_k, i64 row) {
  const i64 position = row + (problem.top_left ? 0 : seqlen_k - seqlen_q);
  i64 first = problem.window_left < 0 ? 0 : position - problem.window_left;
  i64 last = problem.window_right < 0 ? seqlen_k : position + problem.window_right + 1;
  first = first < 0 ? 0 : first;
  last = last > seqlen_k ? seqlen_k : last;
  i64 count = last > first ? last - first : 0;
  // Sink columns to the left of the window.
  if (problem.window_left >= 0 && last > 0) {
    i64 sink = problem.sink_keys;
    sink = sink < first ? sink : first;
    count += sink < last ? sink : last;
  }
  return count;
}

// Tells whether the last rows of a sequence see more keys than the first. Visible ranges rise, stay, or fall along the rows
// (a window bounded on both sides does each in turn, at its ends only).
template <class Problem>
bool last_rows_see_more(const Problem& problem, i64 seqlen_q, i64 seqlen_k) {
  return problem.features.mask && seqlen_q > 0 &&
         visible_keys(problem, seqlen_q, seqlen_k, seqlen_q - 1) > visible_keys(problem, seqlen_q, seqlen_k, 0);
}

// The keys a row sees, taken over three rows of the sequence; 0 without rows.
template <class Problem>
double mean_visible_keys(const Problem& problem, i64 seqlen_q, i64 seqlen_k) {
  if (seqlen_q == 0) return 0;
  if (!problem.features.mask) return static_cast<double>(seqlen_k);
  return static_cast<double>(visible_keys(problem, seqlen_q, seqlen_k, 0) +
                             visible_keys(problem, seqlen_q, seqlen_k, seqlen_q / 2) +
                             visible_keys(problem, seqlen_q, seqlen_k, seqlen_q - 1)) /
         3;
}

// Tells whether a window to the left hides no key at `key` from any row.
template <class Problem>
bool is_never_left(const Problem& problem, i64 key) {
  return problem.window_left < 0 || (problem.features.sink && key < problem.sink_keys);
}

// The keys that a tile of `rows` queries sees, at most.
template <class Problem>
i64 most_visible_keys(const Problem& problem, i64 rows, i64 seqlen_k) {
  if (!problem.features.mask || problem.window_left < 0 || problem.window_right < 0) return seqlen_k;
  const i64 most = i64(problem.window_left) + problem.window_right + rows + problem.sink_keys;
  return most < seqlen_k ? most : seqlen_k;
}

}  // namespace tilekiln::fmha
