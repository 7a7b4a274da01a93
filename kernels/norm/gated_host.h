// SPDX-License-Identifier: MIT
// Host code that gated activations and their gradients share.
#pragma once
#include "kernels/norm/gated.h"
#include "kernels/norm/host.h"

namespace tilekiln::norm {

// Arrays of (rows, columns), those of the forward or of the backward.
template <class Arrays> void put_gated(const Arrays& in, int64_t rows, int64_t columns, Gated& to) {
  put_rows(in.gate, to.gate, to.gate_row);
  put_rows(in.up, to.up, to.up_row);
  if constexpr (requires { in.dy; }) {
    put_rows(in.dy, to.dy, to.dy_row);
    put_rows(in.dgate, to.dgate, to.dgate_row);
    put_rows(in.dup, to.dup, to.dup_row);
  } else {
    put_rows(in.y, to.y, to.y_row);
  }
  to.rows = rows;
  to.columns = static_cast<int>(columns);
}

}  // namespace tilekiln::norm
