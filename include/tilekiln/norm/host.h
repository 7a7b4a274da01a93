// What the host sides of operators over rows share.
#pragma once
#include "tilekiln/norm/engine.h"
#include "tilekiln/runtime/array.h"
#include "tilekiln/runtime/entry.h"

namespace tilekiln::norm {

// The address of an array and its stride between rows, where it is given.
template <class To> void put_rows(const Array& from, To*& data, long long& row) {
  if (from.given()) data = static_cast<To*>(from.data), row = from.stride[0];
}
template <class To> void put(const Array& from, To*& data) {
  if (from.given()) data = reinterpret_cast<To*>(from.data);
}

// x, residual, gamma, y and residual_out of rows [M, N].
template <class Arrays> void put_common(const Arrays& in, int64_t rows, int64_t columns, Problem& to) {
  put_rows(in.x, to.x, to.x_row);
  put(in.gamma, to.gamma);
  put_rows(in.y, to.y, to.y_row);
  put_rows(in.residual, to.residual, to.residual_row);
  put_rows(in.residual_out, to.residual_out, to.residual_out_row);
  to.rows = rows;
  to.columns = static_cast<int>(columns);
}

// The rows of a call, a unit those of 16,384 elements together, or one longer row.
[[nodiscard]] tilekiln_status launch_rows(StageCall<Problem>& call);

}  // namespace tilekiln::norm
