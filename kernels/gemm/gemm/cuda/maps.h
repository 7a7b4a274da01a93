// SPDX-License-Identifier: MIT
// Operands of Hopper's kernels: tensor maps of those that TMA follows, places of the others. Included once, by
// the file of a pipeline, as launch.h is.
#pragma once
#include "kernels/gemm/gemm/cuda/launch.h"

namespace tilekiln::cuda::gemm {
namespace {

tilekiln_status encode_operand(const Operand& of, bool ahead, int device, TensorMap* map) {
  const i64 rows = of.along_lines ? of.steps : of.lines;
  // TMA moves bytes of any 8-bit type.
  const int dtype = of.element_bytes() == 1 ? TILEKILN_FP8 : of.dtype == Dtype::fp16 ? TILEKILN_FP16 : TILEKILN_BF16;
  RowArray array = {of.name, of.data, dtype, {1, 1, 1, 1, 1}, {16, 16, 16, 16}};
  array.lengths[0] = static_cast<uint64_t>(of.along_lines ? of.lines : of.steps);
  array.lengths[1] = static_cast<uint64_t>(rows);
  array.lengths[2] = static_cast<uint64_t>(of.batches());
  array.ahead = ahead;
  if (rows > 1) array.strides[0] = static_cast<uint64_t>(of.between * of.element_bytes());
  if (of.batches() > 1) array.strides[1] = static_cast<uint64_t>(of.batch_bytes);
  return encode(array, of.rows, device, map);
}

// The map of an operand, or where to gather it.
[[maybe_unused]] tilekiln_status place(const Operand& of, int device, int gather, TensorMap* map, Gathered* from,
                                       Params* params) {
  constexpr int most_streamed = 256;  // rows of products that read each byte of b about once
  if (of.as_built && can_copy(of)) return encode_operand(of, params->m <= most_streamed, device, map);
  params->features |= gather;
  *from = gathered(of);
  return TILEKILN_OK;
}

}  // namespace
}  // namespace tilekiln::cuda::gemm
