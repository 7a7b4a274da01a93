// SPDX-License-Identifier: MIT
// Arguments of conv_bwd_data as convolutions of dy.
#include <numeric>

#include "kernels/conv/conv_bwd_data/merged.h"
#include "kernels/generated/operators/conv_bwd_data_entries.h"

namespace tilekiln::op::conv_bwd_data {

using conv::Convolution;
using conv::i64;
using conv::kSpatial;
using conv::Lengths;
using conv::lengths_of;
using conv::Window;

namespace {

namespace axes = tilekiln::conv_bwd_data;
static_assert(static_cast<int>(axes::Dtype::fp16) == static_cast<int>(matrix::Dtype::fp16) &&
              static_cast<int>(axes::Dtype::bf16) == static_cast<int>(matrix::Dtype::bf16));

// Spatial lengths of dx, given or the least, and that they make those of dy.
tilekiln_status geometry(const Args& args, Window* window, Lengths* in) {
  const tilekiln_tensor &dy = *args.dy, &weight = *args.weight;
  const int spatial = dy.ndim - 2, first = kSpatial - spatial;
  TILEKILN_TRY(conv::read_window(args, dy.ndim, window));
  const Lengths out = lengths_of(dy.shape, dy.ndim), filter = lengths_of(weight.shape, weight.ndim);
  for (int i = first; i < kSpatial; ++i) {
    const i64 extent = window->dilation.at[i] * (filter.at[i] - 1) + 1;
    in->at[i] = std::max<i64>(
        0, (std::max<i64>(out.at[i], 1) - 1) * window->stride.at[i] + extent - window->before[i] - window->after[i]);
  }
  if (args.lengths.count == 0) return TILEKILN_OK;
  if (args.lengths.count != spatial)
    return fail_argument("lengths", "had %d numbers, must have %d, the spatial lengths of dx, or none",
                         args.lengths.count, spatial);
  Lengths made;
  for (int i = 0; i < spatial; ++i) {
    if (args.lengths.dim[i] < 0)
      return fail_argument("lengths", "number %d was %d, must be at least 0", i, args.lengths.dim[i]);
    in->at[first + i] = args.lengths.dim[i];
  }
  TILEKILN_TRY(conv::out_lengths(*window, *in, filter, &made));
  for (int i = first; i < kSpatial; ++i) {
    if (made.at[i] != out.at[i]) {
      return fail_argument("lengths", "number %d was %lld, which makes %lld pixels of %s, must make the %lld of dy",
                           i - first, in->at[i], made.at[i], conv::kSides[i], out.at[i]);
    }
  }
  return TILEKILN_OK;
}

// Sets dimension i of c for the pixels of dx that are `place` in their stride: those of dy that meet them, in steps of 1.
void set_place(Convolution* c, int i, i64 place, i64 length) {
  const i64 stride = c->step[i], dilation = c->tap[i], padded = place - c->start[i];  // start: less the padding
  const i64 period = stride / std::gcd(stride, dilation);
  i64 first = 0;
  while (first < period && first < c->filter[i] && (padded - first * dilation) % stride != 0) ++first;
  const bool none = first == period || first >= c->filter[i];
  c->out[i] = length <= place ? 0 : (length - place + stride - 1) / stride;
  c->y += place * c->y_step.at[i] * conv::size_of(c->dtype);
  c->y_step.at[i] *= stride;
  c->filter[i] = none ? 0 : (c->filter[i] - first + period - 1) / period;
  c->w += none ? 0 : first * c->w_step.at[i] * conv::size_of(c->dtype);
  c->w_step.at[i] *= period;
  c->step[i] = 1, c->tap[i] = -(period * dilation / stride),
  c->start[i] = none ? 0 : (padded - first * dilation) / stride;
}

}  // namespace

tilekiln_status pixels(const Args& args, tilekiln_shape* shape) {
  const tilekiln_tensor &dy = *args.dy, &weight = *args.weight;
  if (weight.shape[0] % args.groups != 0)
    return fail_argument("groups", "was %d, must divide %lld, the output count of weight", args.groups,
                         static_cast<long long>(weight.shape[0]));
  Window window;
  Lengths in;
  TILEKILN_TRY(geometry(args, &window, &in));
  shape->ndim = dy.ndim, shape->length[0] = dy.shape[0], shape->length[1] = weight.shape[1] * args.groups;
  for (int i = 2; i < dy.ndim; ++i) shape->length[i] = in.at[kSpatial - dy.ndim + i];
  return TILEKILN_OK;
}

tilekiln_status features(const Args&, Call& call) {
  const Array& dx = call.in.dx;
  call.signature.layout = dx.stride[1] == 1 && dx.shape[1] > 1 ? axes::Layout::nhwgc : axes::Layout::ngchw;
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  Window window;
  Lengths lengths;
  static_cast<void>(geometry(args, &window, &lengths));  // checked with the shape of dx
  Convolution& c = call.to.problem;
  const Lengths out = lengths_of(in.dy.shape, in.dy.ndim);
  c = conv::convolution(window, out, lengths_of(in.weight.shape, in.weight.ndim), lengths);
  c.dtype = static_cast<matrix::Dtype>(call.signature.dtype);
  c.out_dtype = static_cast<matrix::OutDtype>(call.signature.dtype);
  c.x = in.dy.data, c.w = in.weight.data, c.y = in.dx.data;
  c.x_step = conv::steps_of(in.dy), c.w_step = conv::steps_of(in.weight), c.y_step = conv::steps_of(in.dx);
  std::swap(c.w_step.batch, c.w_step.channel);
  c.batch = call.B, c.groups = args.groups, c.channels = call.K / args.groups, c.outputs = call.G;
  c.w_group = c.channels * c.w_step.channel;
  int64_t* const sizes = call.to.query.sizes;
  sizes[axes::sizes::batch] = c.batch, sizes[axes::sizes::groups] = c.groups;
  sizes[axes::sizes::channels] = c.outputs, sizes[axes::sizes::outputs] = c.channels;  // of x and y, as of all three
  sizes[axes::sizes::pixels] = conv::product(c.in), sizes[axes::sizes::taps] = conv::product(c.filter);
}

// A convolution for each place of a pixel of dx in its stride, or one of all.
tilekiln_status launch(StageCall<Convolution>& call) {
  const Convolution& whole = call.problem;
  if (merges(whole, call.choice)) return launch_merged(call, call.choice, whole);
  for (i64 a = 0; a < std::min(whole.step[0], whole.out[0]); ++a) {
    for (i64 b = 0; b < std::min(whole.step[1], whole.out[1]); ++b) {
      for (i64 d = 0; d < std::min(whole.step[2], whole.out[2]); ++d) {
        Convolution c = whole;
        const i64 places[kSpatial] = {a, b, d};
        for (int i = 0; i < kSpatial; ++i) set_place(&c, i, places[i], whole.out[i]);
        // No tap at all: the sum of nothing.
        if (conv::product(c.filter) == 0) c.filter[0] = 0, c.filter[1] = c.filter[2] = 1;
        TILEKILN_TRY(conv::launch_forward(call, call.choice, c));
      }
    }
  }
  return TILEKILN_OK;
}

}  // namespace tilekiln::op::conv_bwd_data
