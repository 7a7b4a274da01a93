// SPDX-License-Identifier: MIT
// Arguments of pooling as the plain data of its engine.
#include "kernels/tensor/pooling/host.h"
#include "kernels/generated/operators/pooling_entries.h"

namespace tilekiln::op::pooling {

using tensor::kSides;

tilekiln_status pooled(const Args& args, tilekiln_shape* shape) {
  const int ndim = args.x->ndim;
  tensor::Pooling found = {};
  TILEKILN_TRY(tensor::windows(args, args.x->shape, ndim, &found));
  shape->ndim = ndim;
  std::copy(args.x->shape, args.x->shape + ndim, shape->length);
  std::copy(found.out + kSides - (ndim - 2), found.out + kSides, shape->length + (args.layout == 0 ? 1 : 2));
  return TILEKILN_OK;
}

tilekiln_status places(const Args& args, Call& call) {
  return call.in.indices.given() ? tensor::check_places(args, call.in.x) : TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  tensor::Pooling& to = call.to.problem = tensor::pooling_of(args, in.x);
  tensor::put_steps(in.x, args.layout, to.x_step), tensor::put_steps(in.y, args.layout, to.y_step);
  to.x = in.x.data, to.y = in.y.data;
  if (in.indices.given()) {
    tensor::put_steps(in.indices, args.layout, to.index_step);
    to.indices = reinterpret_cast<int*>(in.indices.data);
  }
  to.dtype = static_cast<int>(call.signature.dtype);
  to.along_channels = to.x_step[1 + kSides] == 1 && (to.channels > 1 || to.x_step[kSides] != 1);
}

tilekiln_status launch(StageCall<tensor::Pooling>& call) {
  const tensor::Pooling& a = call.problem;
  const double row =
      static_cast<double>(a.out[2] * (a.along_channels ? a.channels : 1)) * a.window[0] * a.window[1] * a.window[2];
  return tensor::run_pooling(call, a, a.images * a.out[0] * a.out[1] * (a.along_channels ? 1 : a.channels), row);
}

}  // namespace tilekiln::op::pooling
