// SPDX-License-Identifier: MIT
// Arguments of conv_bwd_weight as the plain data of its engines.
#include "kernels/conv/host.h"
#include "kernels/generated/operators/conv_bwd_weight_entries.h"

namespace tilekiln::op::conv_bwd_weight {

using conv::Convolution;
using conv::divide_up;
using conv::i64;
using conv::kSpatial;
using conv::Lengths;
using conv::lengths_of;
using conv::WeightGradient;
using conv::Window;

namespace {

namespace axes = tilekiln::conv_bwd_weight;

// Spatial lengths of dweight, given or the greatest, and that they make those of dy.
tilekiln_status geometry(const Args& args, Window* window, Lengths* filter) {
  const tilekiln_tensor &x = *args.x, &dy = *args.dy;
  const int spatial = x.ndim - 2, first = kSpatial - spatial;
  TILEKILN_TRY(conv::read_window(args, x.ndim, window));
  const Lengths in = lengths_of(x.shape, x.ndim), out = lengths_of(dy.shape, dy.ndim);
  if (args.filter.count != 0 && args.filter.count != spatial)
    return fail_argument("filter", "had %d numbers, must have %d, the spatial lengths of dweight, or none",
                         args.filter.count, spatial);
  for (int i = 0; i < spatial; ++i) {
    const int at = first + i;
    const i64 padded = in.at[at] + window->before[at] + window->after[at];
    const i64 left = padded - (out.at[at] - 1) * window->stride.at[at] - 1;
    if (left < 0) {
      return fail_argument("dy",
                           "%s was %lld, must be at most %lld: x has %lld pixels with its padding, and stride is %lld",
                           conv::kSides[at], out.at[at], padded <= 0 ? 0 : (padded - 1) / window->stride.at[at] + 1,
                           padded, window->stride.at[at]);
    }
    filter->at[at] = left / window->dilation.at[at] + 1;
    if (args.filter.count == 0) continue;
    if (args.filter.dim[i] < 1)
      return fail_argument("filter", "number %d was %d, must be at least 1", i, args.filter.dim[i]);
    filter->at[at] = args.filter.dim[i];
  }
  Lengths made;
  TILEKILN_TRY(conv::out_lengths(*window, in, *filter, &made, "filter"));
  for (int i = first; i < kSpatial; ++i) {
    if (made.at[i] != out.at[i]) {
      return fail_argument("filter", "number %d was %lld, which makes %lld pixels of %s, must make the %lld of dy",
                           i - first, filter->at[i], made.at[i], conv::kSides[i], out.at[i]);
    }
  }
  return TILEKILN_OK;
}

}  // namespace

tilekiln_status filters(const Args& args, tilekiln_shape* shape) {
  const tilekiln_tensor &x = *args.x, &dy = *args.dy;
  TILEKILN_TRY(conv::check_groups(args.groups, x.shape[1], dy.shape[1], "dy"));
  Window window;
  Lengths filter;
  TILEKILN_TRY(geometry(args, &window, &filter));
  shape->ndim = x.ndim, shape->length[0] = dy.shape[1], shape->length[1] = x.shape[1] / args.groups;
  for (int i = 2; i < x.ndim; ++i) shape->length[i] = filter.at[kSpatial - x.ndim + i];
  return TILEKILN_OK;
}

tilekiln_status features(const Args&, Call& call) {
  const Array& dy = call.in.dy;
  call.signature.layout = dy.stride[1] == 1 && dy.shape[1] > 1 ? axes::Layout::nhwgc : axes::Layout::ngchw;
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  Window window;
  Lengths filter;
  static_cast<void>(geometry(args, &window, &filter));  // checked with the shape of dweight
  WeightGradient& g = call.to.problem;
  Convolution& c = g.of;
  c = conv::convolution(window, lengths_of(in.x.shape, in.x.ndim), filter, lengths_of(in.dy.shape, in.dy.ndim));
  c.dtype = static_cast<matrix::Dtype>(call.signature.dtype);
  c.x = in.x.data, c.y = in.dy.data, g.dw = in.dweight.data;
  c.x_step = conv::steps_of(in.x), c.w_step = conv::steps_of(in.dweight), c.y_step = conv::steps_of(in.dy);
  c.batch = call.B, c.groups = args.groups, c.channels = call.C / args.groups, c.outputs = call.K / args.groups;
  g.dtype = static_cast<matrix::OutDtype>(call.signature.out_dtype);
  int64_t* const sizes = call.to.query.sizes;
  sizes[axes::sizes::batch] = c.batch, sizes[axes::sizes::groups] = c.groups;
  sizes[axes::sizes::channels] = c.channels, sizes[axes::sizes::outputs] = c.outputs;
  sizes[axes::sizes::pixels] = conv::product(c.out), sizes[axes::sizes::taps] = conv::product(c.filter);
}

tilekiln_status launch(StageCall<WeightGradient>& call) {
  return conv::launch_weights(call, call.choice, call.problem);
}

}  // namespace tilekiln::op::conv_bwd_weight
