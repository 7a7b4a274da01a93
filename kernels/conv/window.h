// SPDX-License-Identifier: MIT
// Strides, dilations and padding of a convolution, read and checked against its lengths.
#pragma once
#include <algorithm>

#include "kernels/conv/engine.h"
#include "kernels/runtime/array.h"
#include "kernels/runtime/status.h"

namespace tilekiln::conv {

constexpr int kSpatial = 3;
// Lengths of three spatial dimensions: those that an array has come last, the others are 1.
struct Lengths { i64 at[kSpatial] = {1, 1, 1}; };

inline Lengths lengths_of(const int64_t* shape, int ndim) {
  Lengths lengths;
  for (int i = 2; i < ndim; ++i) lengths.at[kSpatial - ndim + i] = shape[i];
  return lengths;
}

struct Window {
  Lengths stride, dilation;
  i64 before[kSpatial] = {}, after[kSpatial] = {};
};

inline tilekiln_status read_numbers(const char* name, const tilekiln_dims& dims, int spatial, i64 least, i64* to) {
  if (dims.count > 1 && dims.count != spatial) {
    return fail_argument(name, "had %d numbers, must have 1 or %d: one for all spatial dimensions, or one for each",
                         dims.count, spatial);
  }
  for (int i = 0; i < dims.count; ++i) {
    if (dims.dim[i] < least)
      return fail_argument(name, "number %d was %d, must be at least %lld", i, dims.dim[i], least);
  }
  for (int i = 0; i < spatial && dims.count > 0; ++i) to[i] = dims.dim[dims.count == 1 ? 0 : i];
  return TILEKILN_OK;
}

template <class Args> tilekiln_status read_window(const Args& args, int ndim, Window* to) {
  const int spatial = ndim - 2, first = kSpatial - spatial;
  TILEKILN_TRY(read_numbers("stride", args.stride, spatial, 1, to->stride.at + first));
  TILEKILN_TRY(read_numbers("dilation", args.dilation, spatial, 1, to->dilation.at + first));
  const tilekiln_dims& padding = args.padding;
  if (padding.count != 2 * spatial || spatial == 0) {
    if (padding.count > 1 && padding.count != spatial) {
      return fail_argument("padding",
                           "had %d numbers, must have 1, %d or %d: one for all spatial dimensions, one for "
                           "each, or those before each and then those after each",
                           padding.count, spatial, 2 * spatial);
    }
    TILEKILN_TRY(read_numbers("padding", padding, spatial, 0, to->before + first));
    std::copy_n(to->before, kSpatial, to->after);
    return TILEKILN_OK;
  }
  for (int i = 0; i < 2 * spatial; ++i) {
    if (padding.dim[i] < 0) return fail_argument("padding", "number %d was %d, must be at least 0", i, padding.dim[i]);
    (i < spatial ? to->before[first + i] : to->after[first + i - spatial]) = padding.dim[i];
  }
  return TILEKILN_OK;
}

constexpr const char* kSides[kSpatial] = {"depth", "height", "width"};

// Lengths of y, of those of x and a filter.
inline tilekiln_status out_lengths(const Window& window, const Lengths& in, const Lengths& filter, Lengths* out,
                                   const char* of = "weight") {
  for (int i = 0; i < kSpatial; ++i) {
    const i64 padded = in.at[i] + window.before[i] + window.after[i];
    const i64 extent = window.dilation.at[i] * (filter.at[i] - 1) + 1;
    if (extent > padded) {
      return fail_argument(of,
                           "filter %s was %lld, with dilation %lld over %lld pixels, must be at most the "
                           "%s of x with its padding, which was %lld",
                           kSides[i], filter.at[i], window.dilation.at[i], extent, kSides[i], padded);
    }
    out->at[i] = (padded - extent) / window.stride.at[i] + 1;
    if (out->at[i] > INT32_MAX)
      return fail_argument("padding", "made %lld pixels of %s, must be at most %d", out->at[i], kSides[i], INT32_MAX);
  }
  return TILEKILN_OK;
}

// Checks that groups divide channels, and outputs of the array `of`.
inline tilekiln_status check_groups(i64 groups, i64 channels, i64 outputs, const char* of) {
  if (channels % groups != 0)
    return fail_argument("groups", "was %lld, must divide %lld, the channel count of x", groups, channels);
  if (outputs % groups != 0)
    return fail_argument("groups", "was %lld, must divide %lld, the output count of %s", groups, outputs, of);
  return TILEKILN_OK;
}

}  // namespace tilekiln::conv
