// SPDX-License-Identifier: MIT
// Arguments of the backward of pooling as the plain data of its engine.
#include "kernels/tensor/pooling/host.h"
#include "kernels/generated/operators/pooling_bwd_entries.h"

namespace tilekiln::op::pooling_bwd {

using tensor::kSides;

tilekiln_status places(const Args& args, Call& call) {
  const Array &x = call.in.x, &dy = call.in.dy;
  tensor::Pooling found = {};
  TILEKILN_TRY(tensor::windows(args, x.shape, x.ndim, &found));
  const int sides = x.ndim - 2, first = args.layout == 0 ? 1 : 2, channel = args.layout == 0 ? x.ndim - 1 : 1;
  if (dy.shape[channel] != x.shape[channel])
    return fail_argument("dy", "had %lld channels, must have %lld, as x", static_cast<long long>(dy.shape[channel]),
                         static_cast<long long>(x.shape[channel]));
  for (int i = 0; i < sides; ++i)
    if (dy.shape[first + i] != found.out[kSides - sides + i])
      return fail_argument("dy", "dimension %d was %lld long, must be %lld, the windows over x", first + i,
                           static_cast<long long>(dy.shape[first + i]), found.out[kSides - sides + i]);
  if (call.in.indices.given()) return tensor::check_places(args, x);
  if (args.operation != static_cast<int>(tensor::Pool::max)) return TILEKILN_OK;
  return fail_argument("indices", "was null, must be what pooling made: the gradient of a maximum goes to its place");
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  tensor::Pooling& to = call.to.problem = tensor::pooling_of(args, in.x);
  tensor::put_steps(in.dx, args.layout, to.x_step), tensor::put_steps(in.dy, args.layout, to.y_step);
  to.x = in.dx.data, to.y = in.dy.data;
  if (in.indices.given()) {
    tensor::put_steps(in.indices, args.layout, to.index_step);
    to.indices = reinterpret_cast<int*>(in.indices.data);
  }
  to.dtype = static_cast<int>(call.signature.dtype);
  to.along_channels = to.x_step[1 + kSides] == 1 && to.y_step[1 + kSides] == 1 && to.channels > 1;
}

tilekiln_status launch(StageCall<tensor::Pooling>& call) {
  const tensor::Pooling& a = call.problem;
  double row = static_cast<double>(a.length[2] * (a.along_channels ? a.channels : 1));
  for (int i = 0; i < kSides; ++i) row *= 1 + (a.window[i] - 1) / a.stride[i];
  return tensor::run_pooling(call, a, a.images * a.length[0] * a.length[1] * (a.along_channels ? 1 : a.channels), row);
}

}  // namespace tilekiln::op::pooling_bwd
