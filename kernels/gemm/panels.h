// SPDX-License-Identifier: MIT
// Checks of arrays that are panels, for the operators with a packed b.
#pragma once
#include "kernels/gemm/host.h"

namespace tilekiln::matrix {

inline tilekiln_status check_panels(const Array& b, int dimension, const char* what, i64 must, const char* why) {
  if (b.shape[dimension] == must) return TILEKILN_OK;
  return fail_argument(b.name, "%s was %lld, must be %lld, %s", what, static_cast<long long>(b.shape[dimension]),
                       static_cast<long long>(must), why);
}

// Dimensions from `first` on lie as one.
inline tilekiln_status check_contiguous_from(const Array& array, int first) {
  i64 step = 1;
  for (int i = array.ndim - 1; i >= first && !array.empty(); --i) {
    if (array.shape[i] > 1 && array.stride[i] != step)
      return fail_argument(array.name, "stride of dimension %d was %lld, must be %lld: pass a contiguous array", i,
                           static_cast<long long>(array.stride[i]), static_cast<long long>(step));
    step *= array.shape[i];
  }
  return TILEKILN_OK;
}

// Fills the problem of a product with a packed b: n is that of whole panels, and out has as many columns.
template <class Call> void fill_panels(const Call& call, float beta, Problem* p) {
  p->m = static_cast<int>(call.M);
  p->n = static_cast<int>(call.P * kPanelLanes);
  p->k = static_cast<int>(call.K);
  p->a = call.in.a.data;
  p->b = call.in.b.data;
  p->out = call.in.out.data;
  p->out_row = call.in.out.stride[0];
  p->bias = numbers(call.in.bias);
  if (call.in.c.given() && beta != 0) p->c = {call.in.c.data, call.in.c.stride[0], 1};
  p->beta = beta;
}

}  // namespace tilekiln::matrix
