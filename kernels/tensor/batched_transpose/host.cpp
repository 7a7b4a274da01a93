// SPDX-License-Identifier: MIT
// Arguments of batched_transpose as the plain data of its engine.
#include "kernels/generated/operators/batched_transpose_entries.h"
#include "kernels/tensor/move.h"

namespace tilekiln::op::batched_transpose {

namespace {

// The dimension of x that becomes dimension d of y: of matrices, of images with channels first, and last.
const int* order(const Args& args, int ndim) {
  static constexpr int matrices[] = {0, 2, 1}, first[] = {0, 2, 3, 1}, last[] = {0, 3, 1, 2};
  return ndim == 3 ? matrices : args.layout == 0 ? first : last;
}

}  // namespace

tilekiln_status turned(const Args& args, tilekiln_shape* shape) {
  const int ndim = args.x->ndim;
  if (ndim != 3 && ndim != 4) {
    return fail_argument("x", "had %d dimensions, must have 3, (batch, rows, columns), or 4, images", ndim);
  }
  shape->ndim = ndim;
  for (int i = 0; i < ndim; ++i) shape->length[i] = args.x->shape[order(args, ndim)[i]];
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  tensor::put_move(call.in.x, call.in.y, order(args, call.in.x.ndim), call.to.problem);
}

tilekiln_status launch(StageCall<tensor::Move>& call) { return tensor::launch_move(call); }

}  // namespace tilekiln::op::batched_transpose
