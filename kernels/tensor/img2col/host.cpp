// SPDX-License-Identifier: MIT
// Arguments of img2col as the plain data of its engine.
#include "kernels/generated/operators/img2col_entries.h"
#include "kernels/tensor/img2col/engine.h"
#include "kernels/tensor/move.h"

namespace tilekiln::op::img2col {

namespace {

// Number of patches that begin along a side.
int64_t patches(int64_t length, int64_t filter, int64_t stride, int64_t dilation, int64_t padding) {
  const int64_t free = length + 2 * padding - dilation * (filter - 1) - 1;
  return free < 0 ? 0 : free / stride + 1;
}

struct Sides { int64_t height, width; };
Sides out(const Args& args, int64_t height, int64_t width) {
  return {patches(height, args.filter_height, args.stride_height, args.dilation_height, args.padding_height),
          patches(width, args.filter_width, args.stride_width, args.dilation_width, args.padding_width)};
}

}  // namespace

tilekiln_status columns(const Args& args, tilekiln_shape* shape) {
  const int64_t* x = args.x->shape;
  if (x[3] % args.groups != 0) {
    return fail_argument("groups", "was %d, must divide %lld, the channels of x", args.groups,
                         static_cast<long long>(x[3]));
  }
  const Sides sides = out(args, x[1], x[2]);
  if (sides.height == 0 || sides.width == 0) {
    return fail_argument("filter", "was (%d, %d), must fit into x of (%lld, %lld) with its padding and dilation",
                         args.filter_height, args.filter_width, static_cast<long long>(x[1]),
                         static_cast<long long>(x[2]));
  }
  int64_t rows = 0, width = 0;
  if (sides.height > INT32_MAX || sides.width > INT32_MAX ||
      __builtin_mul_overflow(sides.height * sides.width, x[0], &rows) ||
      __builtin_mul_overflow(int64_t{args.filter_height} * args.filter_width, x[3] / args.groups * 8, &width)) {
    return fail_argument("filter", "was (%d, %d), makes a matrix that no memory holds", args.filter_height,
                         args.filter_width);
  }
  *shape = {3, {args.groups, rows, width / 8}};
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Array &x = call.in.x, &y = call.in.y;
  const Sides sides = out(args, call.Y, call.X);
  const int64_t bytes = dtype_bytes(x.dtype);
  tensor::Img2col& to = call.to.problem;
  to.x = x.data, to.y = y.data;
  to.x_image = x.stride[0] * bytes, to.x_row = x.stride[1] * bytes, to.x_pixel = x.stride[2] * bytes;
  to.y_group = y.stride[0] * bytes, to.y_row = y.stride[1] * bytes;
  to.height = static_cast<int>(call.Y), to.width = static_cast<int>(call.X);
  to.out_height = static_cast<int>(sides.height), to.out_width = static_cast<int>(sides.width);
  to.filter_height = args.filter_height, to.filter_width = args.filter_width;
  to.stride[0] = args.stride_height, to.stride[1] = args.stride_width;
  to.dilation[0] = args.dilation_height, to.dilation[1] = args.dilation_width;
  to.padding[0] = args.padding_height, to.padding[1] = args.padding_width;
  to.groups = args.groups;
  to.bytes = static_cast<int>(call.C / args.groups * bytes);
  to.patches = y.empty() ? 0 : y.shape[1];
}

tilekiln_status launch(StageCall<tensor::Img2col>& call) {
  const tensor::Img2col& to = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, to);
  const double row = 1.0 * to.groups * to.filter_height * to.filter_width * to.bytes;
  const int64_t many = std::max<int64_t>(1, static_cast<int64_t>(65536 / (row + 1)));
  const auto run = static_cast<const tensor::Img2colEngine*>(call.choice.engine)->patches;
  const double work = 4 * row * static_cast<double>(to.patches);
  return launch_stage(call, call.choice, to, tensor::blocks(to.patches, many), work, 0, [&](int64_t unit, void*) {
    run(to, unit * many, std::min<int64_t>(to.patches, (unit + 1) * many));
  });
}

}  // namespace tilekiln::op::img2col
