// SPDX-License-Identifier: MIT
// Two arrays of one shape as a Move, and its units.
#pragma once
#include <algorithm>
#include <utility>

#include "kernels/runtime/array.h"
#include "kernels/runtime/entry.h"
#include "kernels/runtime/launch.h"
#include "kernels/runtime/streaming.h"
#include "kernels/tensor/engine.h"

namespace tilekiln::tensor {

struct Dim { int64_t length, x, y; };

inline int64_t size_of(int64_t step) { return step < 0 ? -step : step; }

// Dimensions without those of length 1, in the order of y, those joined along which both arrays go on evenly. Returns how many.
inline int joined(Dim* dims, int count) {
  count = static_cast<int>(std::remove_if(dims, dims + count, [](const Dim& d) { return d.length == 1; }) - dims);
  for (int i = 1; i < count; ++i)  // insertion sort: stable, and a call allocates nothing
    for (int at = i; at > 0 && size_of(dims[at - 1].y) < size_of(dims[at].y); --at) std::swap(dims[at - 1], dims[at]);
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    Dim* const last = kept > 0 ? &dims[kept - 1] : nullptr;
    if (last != nullptr && last->x == dims[i].x * dims[i].length && last->y == dims[i].y * dims[i].length)
      *last = {last->length * dims[i].length, dims[i].x, dims[i].y};
    else
      dims[kept++] = dims[i];
  }
  return kept;
}

// Dimension i of y is dimension from[i] of x.
inline void put_move(const Array& x, const Array& y, const int* from, Move& to) {
  Dim dims[TILEKILN_MAX_NDIM + 2];
  int64_t elements = 1;
  for (int i = 0; i < y.ndim; ++i) {
    dims[i] = {y.shape[i], x.stride[from[i]], y.stride[i]};
    elements *= y.shape[i];
  }
  int count = joined(dims, y.ndim);
  Dim column = {1, 1, 1}, row = {1, 0, 0};
  if (count > 0) column = dims[--count];
  int at = count - 1;
  if (column.y == 1 && column.x != 1)
    for (int i = 0; i < count; ++i) at = dims[i].x == 1 ? i : at;
  if (at >= 0) {
    row = dims[at];
    std::copy(dims + at + 1, dims + count, dims + at);
    --count;
  }
  to.x = x.data, to.y = y.data;
  to.all_planes = elements == 0 ? 0 : 1;
  for (int i = 0; i < kOuter; ++i) {
    const Dim one = i < count ? dims[i] : Dim{1, 0, 0};
    to.outer[i] = one.length, to.outer_x[i] = one.x, to.outer_y[i] = one.y;
    to.all_planes *= one.length;
  }
  to.rows = row.length, to.row_x = row.x, to.row_y = row.y;
  to.columns = column.length, to.column_x = column.x, to.column_y = column.y;
  const int64_t bytes = dtype_bytes(x.dtype);
  to.bytes = bytes == 8 ? 3 : bytes == 4 ? 2 : bytes == 2 ? 1 : 0;
  const bool tiles = column.y == 1 && row.x == 1 && row.length >= 4 && column.length >= 4;
  const Way way = column.x == 1 && column.y == 1 ? Way::rows : tiles ? Way::tiles : Way::scattered;
  to.way = static_cast<int>(way);
  bool lines = whole_lines(y.data, row.y * bytes, column.length * bytes);  // of y, in whole
  for (int i = 0; i < count; ++i) lines = lines && whole_lines(nullptr, dims[i].y * bytes, 0);
  to.streaming = 2 * elements * bytes >= kStreamingBytes &&
                 (way == Way::rows ? column.length * bytes >= 1024 : way == Way::tiles && lines);
  // 64 KB a unit. A block of tiles has 64 rows, so that their lines of x and of y, pages apart, fit the TLB; where y goes around the
  // caches it follows long pieces of 128 rows of x, measured 1.1 to 1.7 times as fast as that.
  const int64_t unit = 65536 / bytes;
  const bool tiled = way == Way::tiles;
  to.column_block = !tiled ? std::min(unit, std::max<int64_t>(column.length, 1)) : to.streaming ? 128 : 256;
  to.row_block = !tiled ? std::max<int64_t>(1, unit / to.column_block) : to.streaming ? 1024 : 64;
  to.planes = std::max<int64_t>(1, unit / std::max<int64_t>(1, row.length * column.length));
}

inline int64_t blocks(int64_t length, int64_t block) { return (length + block - 1) / block; }

[[nodiscard]] inline tilekiln_status launch_move(StageCall<Move>& call) {
  const Move& move = call.problem;
  if (move.all_planes == 0) return TILEKILN_OK;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, move);
  const int64_t inside = blocks(move.rows, move.row_block) * blocks(move.columns, move.column_block);
  const int64_t units = inside > 1 ? inside * move.all_planes : blocks(move.all_planes, move.planes);
  const auto run = static_cast<const MoveEngine*>(call.choice.engine)->run[move.bytes];
  const double work = 4.0 * static_cast<double>(move.all_planes * move.rows * move.columns << move.bytes);
  return launch_stage(call, call.choice, move, units, work, 0, [&](int64_t unit, void*) { run(move, unit, unit + 1); });
}

}  // namespace tilekiln::tensor
