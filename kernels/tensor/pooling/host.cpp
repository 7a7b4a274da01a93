// SPDX-License-Identifier: MIT
// Arguments of pooling as the plain data of its engine.
#include "kernels/generated/operators/pooling_entries.h"
#include "kernels/tensor/move.h"
#include "kernels/tensor/pooling/engine.h"

namespace tilekiln::op::pooling {

namespace {

using tensor::kSides;

// A number of each side, of the last sides of three.
tilekiln_status numbers(const char* name, const tilekiln_dims& given, int sides, int least, const int* missing,
                        int* to) {
  if (given.count > 1 && given.count != sides)
    return fail_argument(name, "had %d numbers, must have 1 or %d, one a side of x", given.count, sides);
  for (int i = 0; i < sides; ++i) {
    int& one = to[kSides - sides + i];
    one = given.count == 0 ? missing[kSides - sides + i] : given.dim[given.count == 1 ? 0 : i];
    if (one < least || one > (1 << 24))
      return fail_argument(name, "was %d, must be from %d to %d", one, least, 1 << 24);
  }
  return TILEKILN_OK;
}

// The windows of a call, as its shape: sides that x has not are 1 long.
tilekiln_status windows(const Args& args, const int64_t* shape, int ndim, tensor::Pooling* to) {
  static constexpr int one[kSides] = {1, 1, 1}, none[kSides] = {};
  const int sides = ndim - 2, first = args.layout == 0 ? 1 : 2;
  for (int i = 0; i < kSides; ++i) {
    to->window[i] = to->stride[i] = to->dilation[i] = 1, to->padding[i] = 0, to->length[i] = to->out[i] = 1;
  }
  TILEKILN_TRY(numbers("window", args.window, sides, 1, one, to->window));
  TILEKILN_TRY(numbers("stride", args.stride, sides, 1, to->window, to->stride));
  TILEKILN_TRY(numbers("dilation", args.dilation, sides, 1, one, to->dilation));
  TILEKILN_TRY(numbers("padding", args.padding, sides, 0, none, to->padding));
  for (int i = kSides - sides; i < kSides; ++i) {
    const int64_t length = to->length[i] = shape[first + i - (kSides - sides)];
    const int64_t reach = int64_t{to->dilation[i]} * (to->window[i] - 1) + 1,
                  free = length + 2 * to->padding[i] - reach;
    if (to->padding[i] > to->window[i] / 2)
      return fail_argument("padding", "was %d, must be at most %d, half of the window", to->padding[i],
                           to->window[i] / 2);
    if (free < 0)
      return fail_argument("window", "was %d, must fit into the %lld elements of x with their padding and its dilation",
                           to->window[i], static_cast<long long>(length));
    int64_t out = (free + (args.ceil_mode != 0 ? to->stride[i] - 1 : 0)) / to->stride[i] + 1;
    if (args.ceil_mode != 0 && (out - 1) * to->stride[i] >= length + to->padding[i]) --out;
    to->out[i] = out;
  }
  return TILEKILN_OK;
}

}  // namespace

tilekiln_status pooled(const Args& args, tilekiln_shape* shape) {
  const int ndim = args.x->ndim;
  tensor::Pooling found = {};
  TILEKILN_TRY(windows(args, args.x->shape, ndim, &found));
  shape->ndim = ndim;
  std::copy(args.x->shape, args.x->shape + ndim, shape->length);
  std::copy(found.out + kSides - (ndim - 2), found.out + kSides, shape->length + (args.layout == 0 ? 1 : 2));
  return TILEKILN_OK;
}

tilekiln_status places(const Args& args, Call& call) {
  if (!call.in.indices.given()) return TILEKILN_OK;
  if (args.operation != static_cast<int>(tensor::Pool::max))
    return fail_argument("indices", "was given, must be null: a mean is of no one place");
  int64_t places = 1;
  for (int i = args.layout == 0 ? 1 : 2, sides = call.in.x.ndim - 2; sides > 0; ++i, --sides)
    if (__builtin_mul_overflow(places, call.in.x.shape[i], &places) || places > INT32_MAX)
      return fail_argument("x", "had images of more than %d elements, must have fewer for indices of 32 bits",
                           INT32_MAX);
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Array& x = call.in.x;
  tensor::Pooling& to = call.to.problem;
  static_cast<void>(windows(args, x.shape, x.ndim, &to));  // checked with the shape of y
  const int sides = x.ndim - 2, channel = args.layout == 0 ? x.ndim - 1 : 1, first = args.layout == 0 ? 1 : 2;
  const auto steps = [&](const Array& from, long long* step) {
    step[0] = from.stride[0], step[1 + kSides] = from.stride[channel];
    for (int i = 0; i < sides; ++i) step[1 + kSides - sides + i] = from.stride[first + i];
  };
  steps(x, to.x_step), steps(call.in.y, to.y_step);
  const bool places = call.in.indices.given();
  if (places) steps(call.in.indices, to.index_step);
  to.x = x.data, to.y = call.in.y.data, to.indices = places ? reinterpret_cast<int*>(call.in.indices.data) : nullptr;
  to.images = x.shape[0], to.channels = x.shape[channel];
  to.operation = args.operation, to.dtype = static_cast<int>(call.signature.dtype);
  to.count_padding = args.count_padding != 0;
  to.along_channels = to.x_step[1 + kSides] == 1 && (to.channels > 1 || to.x_step[kSides] != 1);
}

tilekiln_status launch(StageCall<tensor::Pooling>& call) {
  const tensor::Pooling& a = call.problem;
  const int64_t rows = a.images * a.out[0] * a.out[1] * (a.along_channels ? 1 : a.channels);
  const double row =
      static_cast<double>(a.out[2] * (a.along_channels ? a.channels : 1)) * a.window[0] * a.window[1] * a.window[2];
  const int64_t many = std::max<int64_t>(1, static_cast<int64_t>(16384 / (row + 1)));
  const auto run = static_cast<const tensor::PoolingEngine*>(call.choice.engine)->rows[a.dtype];
  if (rows == 0 || a.channels == 0) return TILEKILN_OK;
  return launch_stage(call, call.choice, a, tensor::blocks(rows, many), 4 * row * static_cast<double>(rows), 0,
                      [&](int64_t unit, void*) { run(a, unit * many, std::min(rows, (unit + 1) * many)); });
}

}  // namespace tilekiln::op::pooling
