// SPDX-License-Identifier: MIT
// Arguments of conv_fwd as the plain data of its engines.
#include "kernels/conv/host.h"
#include "kernels/generated/operators/conv_fwd_entries.h"

namespace tilekiln::op::conv_fwd {

using conv::Convolution;
using conv::Lengths;
using conv::lengths_of;
using conv::Window;

namespace {

namespace axes = tilekiln::conv_fwd;
static_assert(static_cast<int>(axes::Dtype::bf16) == static_cast<int>(matrix::Dtype::bf16) &&
              static_cast<int>(axes::Dtype::int8) == static_cast<int>(matrix::Dtype::int8) &&
              static_cast<int>(axes::OutDtype::bf16) == static_cast<int>(matrix::OutDtype::bf16) &&
              static_cast<int>(axes::OutDtype::int32) == static_cast<int>(matrix::OutDtype::int32));
#define ACTIVATION(name, x) static_assert(static_cast<int>(axes::Activation::name) == static_cast<int>(matrix::Activation::name));
#include "kernels/gemm/activations.inc"
#undef ACTIVATION

tilekiln_status geometry(const Args& args, Window* window, Lengths* out) {
  const tilekiln_tensor &x = *args.x, &weight = *args.weight;
  TILEKILN_TRY(conv::read_window(args, x.ndim, window));
  return conv::out_lengths(*window, lengths_of(x.shape, x.ndim), lengths_of(weight.shape, weight.ndim), out);
}

}  // namespace

tilekiln_status images(const Args& args, tilekiln_shape* shape) {
  const tilekiln_tensor &x = *args.x, &weight = *args.weight;
  TILEKILN_TRY(conv::check_groups(args.groups, x.shape[1], weight.shape[0], "weight"));
  if (x.shape[1] / args.groups != weight.shape[1]) {
    return fail_argument("weight",
                         "channels of a group was %lld, must be %lld: the channel count of x, %lld, by groups",
                         static_cast<long long>(weight.shape[1]), static_cast<long long>(x.shape[1] / args.groups),
                         static_cast<long long>(x.shape[1]));
  }
  Window window;
  Lengths out;
  TILEKILN_TRY(geometry(args, &window, &out));
  shape->ndim = x.ndim, shape->length[0] = x.shape[0], shape->length[1] = weight.shape[0];
  for (int i = 2; i < x.ndim; ++i) shape->length[i] = out.at[conv::kSpatial - x.ndim + i];
  return TILEKILN_OK;
}

tilekiln_status features(const Args& args, Call& call) {
  if (args.clamp_min > args.clamp_max)
    return fail_argument("clamp_min", "was %g, must be at most %g, which is clamp_max",
                         static_cast<double>(args.clamp_min), static_cast<double>(args.clamp_max));
  const Arrays& in = call.in;
  auto& signature = call.signature;
  signature.layout = in.y.stride[1] == 1 && in.y.shape[1] > 1 ? axes::Layout::nhwgc : axes::Layout::ngchw;
  if (signature.out_dtype == axes::OutDtype::int32) {
    const char* const why = "int8 without scale gives int32 sums, which are exact";
    if (in.scale.given()) return fail_argument("y", "dtype was int32, must be fp32, fp16 or bf16 with scale");
    if (in.bias.given()) return fail_argument("bias", "was given, must be null: %s", why);
    if (in.residual.given()) return fail_argument("residual", "was given, must be null: %s", why);
  } else if (signature.dtype == axes::Dtype::int8 && !in.scale.given()) {
    return fail_argument("scale", "was null, must be given: it makes the int32 sums of int8 numbers of y");
  }
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  Window window;
  Lengths out;
  static_cast<void>(geometry(args, &window, &out));  // checked with the shape of y
  Convolution& c = call.to.problem;
  c = conv::convolution(window, lengths_of(in.x.shape, in.x.ndim), lengths_of(in.weight.shape, in.weight.ndim), out);
  c.dtype = static_cast<matrix::Dtype>(call.signature.dtype);
  c.out_dtype = static_cast<matrix::OutDtype>(call.signature.out_dtype);
  c.activation = static_cast<matrix::Activation>(call.signature.activation);
  c.clamp_min = args.clamp_min, c.clamp_max = args.clamp_max;
  c.x = in.x.data, c.w = in.weight.data, c.y = in.y.data;
  c.x_step = conv::steps_of(in.x), c.w_step = conv::steps_of(in.weight), c.y_step = conv::steps_of(in.y);
  if (in.residual.given()) c.residual = in.residual.data, c.residual_step = conv::steps_of(in.residual);
  c.bias = conv::numbers(in.bias), c.scale = conv::numbers(in.scale);
  c.batch = call.B, c.groups = args.groups, c.channels = call.G, c.outputs = call.K / args.groups;
  c.w_group = c.outputs * c.w_step.batch;
  int64_t* const sizes = call.to.query.sizes;
  sizes[axes::sizes::batch] = c.batch, sizes[axes::sizes::groups] = c.groups;
  sizes[axes::sizes::channels] = c.channels, sizes[axes::sizes::outputs] = c.outputs;
  sizes[axes::sizes::pixels] = conv::product(c.out), sizes[axes::sizes::taps] = conv::product(c.filter);
}

tilekiln_status launch(StageCall<conv::ForwardConvolution>& call) {
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, call.problem);
  return conv::launch_forward(call, call.choice, call.problem);
}

}  // namespace tilekiln::op::conv_fwd
