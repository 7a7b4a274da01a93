// SPDX-License-Identifier: MIT
// The keys that a row may see. No ISA here; compiled into each target's namespace all the same (see kernels/backends/target.h).
#pragma once

#include "kernels/attention/fwd_engine.h"
#include "kernels/backends/target.h"

namespace tilekiln::fmha::inline TILEKILN_TARGET {

constexpr i64 kUnbounded = 1LL << 40;  // further than any key

// Row i sees the keys [i + shift - left, i + shift + right] and, up to i + shift + right, those below sink.
struct Window { i64 left, right, shift, sink; };

// Window of FwdProblem and FwdUnit, or their backward counterparts.
template <class Problem, class Unit> Window window_of(const Problem& problem, const Unit& unit) {
  const bool mask = problem.features.mask;
  Window w;
  w.left = mask && problem.window_left >= 0 ? problem.window_left : kUnbounded;
  w.right = mask && problem.window_right >= 0 ? problem.window_right : kUnbounded;
  w.shift = problem.top_left ? 0 : i64(unit.seqlen_k) - unit.seqlen_q;
  w.sink = mask && problem.features.sink ? problem.sink_keys : 0;
  return w;
}

}  // namespace tilekiln::fmha::inline TILEKILN_TARGET
