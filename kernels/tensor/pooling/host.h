// SPDX-License-Identifier: MIT
// Windows of a call of pooling or its backward.
#pragma once
#include "kernels/tensor/move.h"
#include "kernels/tensor/pooling/engine.h"

namespace tilekiln::tensor {

// A number of each side, of the last sides of three.
inline tilekiln_status numbers(const char* name, const tilekiln_dims& given, int sides, int least, const int* missing,
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
template <class Args> tilekiln_status windows(const Args& args, const int64_t* shape, int ndim, Pooling* to) {
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

// Everything of a problem but where arrays lie, from checked arguments, the shape of x among them; steps(array, to) fills steps of any.
template <class Args> Pooling pooling_of(const Args& args, const Array& x) {
  Pooling to = {};
  static_cast<void>(windows(args, x.shape, x.ndim, &to));  // checked
  to.images = x.shape[0], to.channels = x.shape[args.layout == 0 ? x.ndim - 1 : 1];
  to.operation = args.operation, to.count_padding = args.count_padding != 0;
  return to;
}
inline void put_steps(const Array& from, int layout, long long* step) {
  const int sides = from.ndim - 2, channel = layout == 0 ? from.ndim - 1 : 1, first = layout == 0 ? 1 : 2;
  step[0] = from.stride[0], step[1 + kSides] = from.stride[channel];
  for (int i = 0; i < sides; ++i) step[1 + kSides - sides + i] = from.stride[first + i];
}

// Places of maxima are 32 bits.
template <class Args> tilekiln_status check_places(const Args& args, const Array& x) {
  if (args.operation != static_cast<int>(Pool::max))
    return fail_argument("indices", "was given, must be null: a mean is of no one place");
  int64_t places = 1;
  for (int i = args.layout == 0 ? 1 : 2, sides = x.ndim - 2; sides > 0; ++i, --sides)
    if (__builtin_mul_overflow(places, x.shape[i], &places) || places > INT32_MAX)
      return fail_argument("x", "had images of more than %d elements, must have fewer for indices of 32 bits",
                           INT32_MAX);
  return TILEKILN_OK;
}

// Runs the rows of an engine in units.
template <class Call> tilekiln_status run_pooling(Call& call, const Pooling& a, int64_t rows, double row) {
  const int64_t many = std::max<int64_t>(1, static_cast<int64_t>(16384 / (row + 1)));
  const auto run = static_cast<const PoolingEngine*>(call.choice.engine)->rows[a.dtype];
  if (rows == 0 || a.channels == 0) return TILEKILN_OK;
  return launch_stage(call, call.choice, a, blocks(rows, many), 4 * row * static_cast<double>(rows), 0,
                      [&](int64_t unit, void*) { run(a, unit * many, std::min(rows, (unit + 1) * many)); });
}

}  // namespace tilekiln::tensor
