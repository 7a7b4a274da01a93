// SPDX-License-Identifier: MIT
// Arguments of reduce as the plain data of its engine.
#include "kernels/generated/operators/reduce_entries.h"
#include "kernels/tensor/move.h"
#include "kernels/tensor/reduce/engine.h"

namespace tilekiln::op::reduce {

namespace {

// Bit d: dimension d is reduced.
tilekiln_status find_reduced(const Args& args, uint32_t* which) {
  int dim[TILEKILN_MAX_NDIM];
  TILEKILN_TRY(find_dims("axes", args.axes, args.x->ndim, dim));
  *which = args.axes.count == 0 ? ~uint32_t(0) : 0;
  for (int i = 0; i < args.axes.count; ++i) *which |= uint32_t(1) << dim[i];
  return TILEKILN_OK;
}

}  // namespace

tilekiln_status reduced(const Args& args, tilekiln_shape* shape) {
  uint32_t which = 0;
  TILEKILN_TRY(find_reduced(args, &which));
  shape->ndim = 0;
  for (int i = 0; i < args.x->ndim; ++i) {
    const bool gone = (which >> i & 1) != 0;
    if (gone && args.operation >= 2 && args.x->shape[i] == 0)
      return fail_argument("x",
                           "dimension %d was 0 long, must be 1 or more: a maximum or minimum of nothing is nothing", i);
    if (!gone || args.keepdim != 0) shape->length[shape->ndim++] = gone ? 1 : args.x->shape[i];
  }
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Array &x = call.in.x, &y = call.in.y;
  tensor::Reduce& to = call.to.problem;
  tensor::Dim kept[TILEKILN_MAX_NDIM], gone[TILEKILN_MAX_NDIM];
  int keeps = 0, goes = 0, at = 0;
  int64_t each = 1;
  uint32_t which = 0;
  static_cast<void>(find_reduced(args, &which));  // checked with the shape of y
  for (int i = 0; i < x.ndim; ++i) {
    if ((which >> i & 1) != 0) {
      gone[goes++] = {x.shape[i], x.stride[i], x.stride[i]};
      each *= x.shape[i];
      at += args.keepdim != 0 ? 1 : 0;
    } else {
      kept[keeps++] = {x.shape[i], x.stride[i], y.stride[at++]};
    }
  }
  keeps = tensor::joined(kept, keeps);
  goes = tensor::joined(gone, goes);
  to.x = x.data, to.y = y.data;
  to.length = 1, to.step = 0, to.column_y = 0;
  int along = -1;  // the dimension that is kept and contiguous in x
  for (int i = 0; i < keeps; ++i) along = kept[i].x == 1 ? i : along;
  const bool rows = along < 0 || (goes > 0 && gone[goes - 1].x == 1);
  to.way = static_cast<int>(rows ? tensor::ReduceWay::rows : tensor::ReduceWay::columns);
  if (rows && goes > 0) {
    --goes;
    to.length = gone[goes].length, to.step = gone[goes].x;
  } else if (!rows) {
    to.length = kept[along].length, to.step = 1, to.column_y = kept[along].y;
    std::copy(kept + along + 1, kept + keeps, kept + along);
    --keeps;
  }
  to.outputs = 1;
  for (int i = 0; i < tensor::kKept; ++i) {
    const tensor::Dim one = i < keeps ? kept[i] : tensor::Dim{1, 0, 0};
    to.kept[i] = one.length, to.kept_x[i] = one.x, to.kept_y[i] = one.y;
    to.outputs *= one.length;
  }
  for (int i = 0; i < tensor::kReduced; ++i) {
    const tensor::Dim one = i < goes ? gone[i] : tensor::Dim{1, 0, 0};
    to.reduced[i] = one.length, to.reduced_x[i] = one.x;
  }
  to.operation = args.operation;
  to.dtype = static_cast<int>(call.signature.dtype);
  to.scale = args.operation == 1 ? 1 / static_cast<double>(each) : 1;
}

tilekiln_status launch(StageCall<tensor::Reduce>& call) {
  tensor::Reduce& reduce = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, reduce);
  const bool rows = reduce.way == static_cast<int>(tensor::ReduceWay::rows);
  // Wide blocks of columns, of whole lines, as long as each thread has one.
  const int64_t most = tensor::kColumnBytes / (reduce.dtype == 0 ? 4 : 2);
  const int64_t share = tensor::blocks(reduce.outputs * reduce.length, std::max(1, call.threads));
  reduce.column_block = static_cast<int>(std::clamp<int64_t>(tensor::blocks(share, 64) * 64, 64, most));
  const int64_t units = reduce.outputs * (rows ? 1 : tensor::blocks(reduce.length, reduce.column_block));
  double work = 4.0 * static_cast<double>(reduce.outputs) * static_cast<double>(reduce.length);
  for (const long long length : reduce.reduced) work *= static_cast<double>(length);
  const int64_t many =
      std::clamp<int64_t>(static_cast<int64_t>(65536.0 * static_cast<double>(units) / (work + 1)), 1, 4096);
  const auto run = static_cast<const tensor::ReduceEngine*>(call.choice.engine)->rows[reduce.dtype];
  return launch_stage(call, call.choice, reduce, tensor::blocks(units, many), work, 0,
                      [&](int64_t unit, void*) { run(reduce, unit * many, std::min(units, (unit + 1) * many)); });
}

}  // namespace tilekiln::op::reduce
