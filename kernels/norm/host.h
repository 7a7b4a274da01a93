// SPDX-License-Identifier: MIT
// Host code that the operators over rows share.
#pragma once
#include <algorithm>

#include "kernels/norm/engine.h"
#include "kernels/runtime/array.h"
#include "kernels/runtime/entry.h"
#include "kernels/runtime/launch.h"
#include "kernels/runtime/streaming.h"

namespace tilekiln::norm {

// The address of an array and its stride between rows, where it is given.
template <class To> void put_rows(const Array& from, To*& data, long long& row) {
  if (from.given()) data = reinterpret_cast<To*>(from.data), row = from.stride[0];
}
template <class To> void put(const Array& from, To*& data) {
  if (from.given()) data = reinterpret_cast<To*>(from.data);
}

// x and y of (rows, columns).
template <class Arrays> void put_lengths(const Arrays& in, int64_t rows, int64_t columns, Problem& to) {
  put_rows(in.x, to.x, to.x_row);
  put_rows(in.y, to.y, to.y_row);
  to.rows = rows;
  to.columns = static_cast<int>(columns);
}
// Puts x and y, gamma, residual and residual_out.
template <class Arrays> void put_common(const Arrays& in, int64_t rows, int64_t columns, Problem& to) {
  put_lengths(in, rows, columns, to);
  put(in.gamma, to.gamma);
  put_rows(in.residual, to.residual, to.residual_row);
  put_rows(in.residual_out, to.residual_out, to.residual_out_row);
}

// Sets streaming, after lengths and arrays: y of the type of x.
template <class To> void put_streaming(const Array& x, To& to) {
  const int64_t bytes = dtype_bytes(x.dtype), row = to.columns * bytes;
  int64_t arrays = 2;
  if constexpr (requires { to.residual; })
    arrays += (to.residual != nullptr ? 1 : 0) + (to.residual_out != nullptr ? 1 : 0);
  // Measured: 1.15 to 1.25 times as fast at 16 MB, .85 at 2 MB.
  to.fetch_ahead = to.rows * row * arrays >= kStreamingBytes / 4;
  to.streaming =
      to.rows * row * arrays >= kStreamingBytes && to.columns % 32 == 0 && whole_lines(to.y, to.y_row * bytes, row);
}

// Sets the scales that a row is quantised with, and the dtypes.
template <class Signature, class Arrays> void put_quantised(const Arrays& in, const Signature& signature, Problem& to) {
  put(in.y_scale, to.y_scale);
  put(in.smooth_scale, to.smooth_scale);
  to.dtype = static_cast<int>(signature.dtype);
  to.y_dtype = static_cast<int>(signature.y_dtype);
  const int64_t element = dtype_bytes(in.x.dtype), bytes = to.rows * to.columns * element;
  const int64_t moved = bytes * (1 + (to.residual != nullptr ? 1 : 0) + (to.residual_out != nullptr ? 1 : 0));
  to.fetch_ahead = moved >= kStreamingBytes / 4;
  to.y_streaming = moved >= kStreamingBytes / 2;
  // A residual that is overwritten lies in the cache when its sum is there.
  to.sum_streaming = to.y_streaming && to.residual_out != to.residual && to.columns % 32 == 0 &&
                     whole_lines(to.residual_out, to.residual_out_row * element, to.columns * element);
}

// Rows in units of so many, by the engine of these. `work`: multiply-adds of the call.
template <class Engine, class Problem>
[[nodiscard]] tilekiln_status launch_rows_by(StageCall<Problem>& call, int64_t many, double work) {
  const Problem& problem = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, problem);
  const auto rows = static_cast<const Engine*>(call.choice.engine)->rows[problem.dtype];
  return launch_stage(call, call.choice, problem, (problem.rows + many - 1) / many, work, 0, [&](int64_t unit, void*) {
    rows(problem, unit * many, std::min<int64_t>(problem.rows, (unit + 1) * many));
  });
}

// The rows of a call, a unit those of 16,384 elements together, four of up to 8,192 where there are many (engines may take as many at
// a time), or one longer row. `cost`: of an element, in multiply-adds.
template <class Engine = norm::Engine, class Problem>
[[nodiscard]] tilekiln_status launch_rows(StageCall<Problem>& call, double cost = 16) {
  const Problem& problem = call.problem;
  const bool four = problem.columns > 4096 && problem.columns <= 8192 && problem.rows >= 16;
  return launch_rows_by<Engine>(call, four ? 4 : std::max(1, 16384 / problem.columns),
                                cost * static_cast<double>(problem.rows) * problem.columns);
}

}  // namespace tilekiln::norm
