// SPDX-License-Identifier: MIT
// Arrays that are broadcast as an Elementwise, and its units; for operators of expressions too (python/tilekiln/api/functions).
#pragma once
#include "kernels/tensor/elementwise/engine.h"
#include "kernels/tensor/move.h"

namespace tilekiln::tensor {

// The shape that arrays have together, as NumPy broadcasts them.
template <class Tensor> tilekiln_status broadcast(const Tensor* const* x, const char* const* names, int count,
                                                  tilekiln_shape* shape) {
  shape->ndim = 0;
  for (int i = 0; i < count; ++i) shape->ndim = std::max<int>(shape->ndim, x[i]->ndim);
  for (int d = 0; d < shape->ndim; ++d) {
    int64_t length = 1;
    for (int i = 0; i < count; ++i) {
      const int at = d - shape->ndim + x[i]->ndim;
      if (at < 0 || x[i]->shape[at] == 1) continue;
      if (length != 1 && x[i]->shape[at] != length)
        return fail_argument(names[i], "dimension %d was %lld long, must be 1 or %lld as others are", at,
                             static_cast<long long>(x[i]->shape[at]), static_cast<long long>(length));
      length = x[i]->shape[at];
    }
    shape->length[d] = length;
  }
  return TILEKILN_OK;
}

inline void fill_elementwise(const Array* const* x, int count, const Array& y, Elementwise& to) {
  struct Steps { int64_t length, y, x[kOperands]; } dims[TILEKILN_MAX_NDIM] = {};
  int many = 0, kept = 0;
  int64_t elements = 1;
  for (int d = 0; d < y.ndim; ++d) {
    elements *= y.shape[d];
    if (y.shape[d] == 1) continue;
    Steps one = {y.shape[d], y.stride[d], {}};
    for (int i = 0; i < count; ++i) {
      const int at = d - y.ndim + x[i]->ndim;
      if (at >= 0 && x[i]->shape[at] != 1) one.x[i] = x[i]->stride[at];
    }
    int at = many++;  // by the steps of y, stable
    for (; at > 0 && size_of(dims[at - 1].y) < size_of(one.y); --at) dims[at] = dims[at - 1];
    dims[at] = one;
  }
  for (int d = 0; d < many; ++d) {
    Steps* const last = kept > 0 ? &dims[kept - 1] : nullptr;
    bool joins = last != nullptr && last->y == dims[d].y * dims[d].length;
    for (int i = 0; joins && i < count; ++i) joins = last->x[i] == dims[d].x[i] * dims[d].length;
    const int64_t length = joins ? last->length * dims[d].length : dims[d].length;
    Steps& place = joins ? *last : dims[kept++];
    place = dims[d];
    place.length = length;
  }
  const auto take = [&](int d, long long& length, long long& of_y, auto&& of_x) {
    const Steps one = d >= 0 ? dims[d] : Steps{1, 0, {}};
    length = one.length, of_y = one.y;
    for (int i = 0; i < count; ++i) of_x(i) = one.x[i];
  };
  take(kept - 1, to.columns, to.column_y, [&](int i) -> long long& { return to.column_x[i]; });
  take(kept - 2, to.rows, to.row_y, [&](int i) -> long long& { return to.row_x[i]; });
  to.planes = elements == 0 ? 0 : 1;
  for (int d = 0; d < kAround; ++d) {
    take(d < kept - 2 ? d : -1, to.around[d], to.around_y[d], [&](int i) -> long long& { return to.around_x[i][d]; });
    to.planes *= to.around[d];
  }
  for (int i = 0; i < count; ++i) to.x[i] = x[i]->data;
  to.y = y.data, to.operands = count;
  const int64_t bytes = dtype_bytes(y.dtype), unit = 65536 / bytes;
  bool lines = to.column_y == 1 && whole_lines(y.data, to.row_y * bytes, to.columns * bytes);
  for (const long long step : to.around_y) lines = lines && whole_lines(nullptr, step * bytes, 0);
  to.streaming = lines && elements * bytes >= kStreamingBytes;
  to.column_block = std::clamp<int64_t>(to.columns, 1, unit);
  to.row_block = std::max<int64_t>(1, unit / to.column_block);
}

[[nodiscard]] inline tilekiln_status launch_elementwise(StageCall<Elementwise>& call) {
  const Elementwise& a = call.problem;
  if (a.planes == 0) return TILEKILN_OK;
  const int64_t units = a.planes * blocks(a.rows, a.row_block) * blocks(a.columns, a.column_block);
  const auto run = static_cast<const ElementwiseEngine*>(call.choice.engine)->rows[a.dtype];
  const double work = 2.0 * static_cast<double>(a.operands + 1) * static_cast<double>(a.planes * a.rows * a.columns);
  return launch_stage(call, call.choice, a, units, work, 0, [&](int64_t unit, void*) { run(a, unit, unit + 1); });
}

}  // namespace tilekiln::tensor
