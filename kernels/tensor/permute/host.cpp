// SPDX-License-Identifier: MIT
// Arguments of permute as the plain data of its engine.
#include "kernels/generated/operators/permute_entries.h"
#include "kernels/tensor/move.h"

namespace tilekiln::op::permute {

namespace {

// Sets from[d], the dimension of x that becomes dimension d of y; without axes, they are reversed.
tilekiln_status order(const Args& args, int ndim, int* from) {
  for (int i = 0; i < ndim; ++i) from[i] = ndim - 1 - i;
  if (args.axes.count == 0) return TILEKILN_OK;
  if (args.axes.count != ndim)
    return fail_argument("axes", "had %d dimensions, must have the %d of x, or none", args.axes.count, ndim);
  return find_dims("axes", args.axes, ndim, from);
}

}  // namespace

tilekiln_status permuted(const Args& args, tilekiln_shape* shape) {
  int from[TILEKILN_MAX_NDIM];
  TILEKILN_TRY(order(args, args.x->ndim, from));
  shape->ndim = args.x->ndim;
  for (int i = 0; i < shape->ndim; ++i) shape->length[i] = args.x->shape[from[i]];
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  int from[TILEKILN_MAX_NDIM];
  static_cast<void>(order(args, call.in.x.ndim, from));  // checked with the shape of y
  tensor::put_move(call.in.x, call.in.y, from, call.to.problem);
}

tilekiln_status launch(StageCall<tensor::Move>& call) { return tensor::launch_move(call); }

}  // namespace tilekiln::op::permute
