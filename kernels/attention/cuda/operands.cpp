// SPDX-License-Identifier: MIT
#include "kernels/attention/cuda/operands.h"

#include <stdio.h>

#include <initializer_list>

#include "kernels/backends/cuda/driver.h"

namespace tilekiln::cuda {
namespace {

constexpr int unit = 16;  // bytes that TMA counts in

// Strides of dimensions with one entry are 0, which is no stride to the driver.
uint64_t bytes_of(const Operand& operand, i64 step, i64 length) {
  return length > 1 ? static_cast<uint64_t>(step * operand.bytes) : unit;
}

// The step of a row, which is 0 of an array of one row a sequence: its next row is that of the next sequence.
i64 row_of(const Operand& operand) { return operand.row == 0 && operand.seqlen <= 1 ? operand.sequence : operand.row; }

// Whole rows from one sequence to the next; -1: none. Of an array without rows 0, whatever its strides are: nothing is read of it.
i64 rows_between(const Operand& operand) {
  if (operand.seqlen == 0) return 0;
  const i64 row = row_of(operand);
  return row > 0 && operand.sequence % row == 0 ? operand.sequence / row : -1;
}

// Checks that `operand` has as many rows as `other`, which is itself where there is no other.
tilekiln_status check_rows(const Operand& operand, const Operand& other, int batch) {
  const i64 rows = rows_between(operand);
  if (rows >= 0 && rows * batch <= INT32_MAX && rows == rows_between(other)) return TILEKILN_OK;
  char must[64] = "whole rows";
  if (&other != &operand) snprintf(must, sizeof(must), "as many whole rows as those of %s", other.name);
  return fail_argument(
      operand.name,
      "batch and row stride were %lld and %lld, must be %s on cuda where sequences have lengths of their own",
      operand.sequence, operand.row, must);
}

}  // namespace

tilekiln_status check_operand(const Operand& operand) {
  const i64 multiple = unit / operand.bytes;
  if (operand.hdim % multiple != 0)
    return fail_argument(operand.name, "had a head dim of %d, must have a multiple of %lld on cuda: pad it with zeros",
                         operand.hdim, multiple);
  if (reinterpret_cast<uintptr_t>(operand.data) % unit != 0)
    return fail_argument(operand.name, "data was at %p, must be aligned to 16 bytes on cuda: pass a copy",
                         operand.data);
  for (const i64 step : {operand.row, operand.head, operand.sequence}) {
    if (step % multiple == 0 && step >= 0) continue;
    return fail_argument(operand.name,
                         "a stride was %lld elements, must be a multiple of %lld, 0 or more, on cuda: pass a copy",
                         step, multiple);
  }
  return TILEKILN_OK;
}

tilekiln_status encode_operand(const Operand& operand, bool packed, int dtype, int batch, const void* other, int device,
                               TensorMap* map) {
  RowArray array = {operand.name, operand.data != nullptr ? operand.data : other, dtype, {}, {}};
  array.lengths[0] = static_cast<uint64_t>(operand.hdim);
  array.lengths[4] = static_cast<uint64_t>(operand.nhead);
  array.strides[3] = bytes_of(operand, operand.head, operand.nhead);
  if (packed) {
    const i64 row = row_of(operand);
    const uint64_t step = row > 0 ? static_cast<uint64_t>(row * operand.bytes) : unit;
    array.lengths[1] = kFar;
    array.lengths[2] = array.lengths[3] = 2 * static_cast<uint64_t>(kFar);
    array.strides[0] = array.strides[1] = step;
    array.strides[2] = (uint64_t(1) << 34) - step;
  } else {
    array.lengths[1] = static_cast<uint64_t>(operand.seqlen > 0 ? operand.seqlen : 1);
    array.lengths[2] = 1;
    array.lengths[3] = static_cast<uint64_t>(batch);
    array.strides[0] = array.strides[1] = bytes_of(operand, operand.row, operand.seqlen);
    array.strides[2] = bytes_of(operand, operand.sequence, batch);
  }
  return encode(array, static_cast<uint32_t>(operand.box), device, map);
}

tilekiln_status find_packing(bool packed, bool group, int batch, const Operand& q, const Operand* second_q,
                             const Operand& k, const Operand& v, Packing* packing) {
  *packing = {packed, 0, 0};
  if (!packed || group || batch <= 1) return TILEKILN_OK;
  TILEKILN_TRY(check_rows(q, q, batch));
  if (second_q != nullptr) TILEKILN_TRY(check_rows(*second_q, q, batch));
  TILEKILN_TRY(check_rows(k, v, batch));
  packing->rows_q = rows_between(q);
  packing->rows_k = rows_between(k);
  return TILEKILN_OK;
}

}  // namespace tilekiln::cuda
