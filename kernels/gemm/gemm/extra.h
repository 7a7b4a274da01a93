// SPDX-License-Identifier: MIT
// A matrix that the epilogue of a GPU's product reads. Plain data.
#pragma once

#include <stdint.h>

#include "kernels/gemm/engine.h"

namespace tilekiln::matrix {

// Null: none. Then sum = sum x, where `multiply`, else sum + factor x.
struct DeviceExtra {
  const void* data;
  int64_t row, column, batch;  // strides in elements
  float factor;
  int multiply;
};

// The next of two, from a matrix of elements of `size` bytes; null where there is none to add.
inline DeviceExtra* add_extra(const Extra& from, i64 batch_bytes, i64 size, float factor, bool multiply,
                              DeviceExtra (&all)[2]) {
  if (from.data == nullptr) return nullptr;
  DeviceExtra& to = all[all[0].data != nullptr ? 1 : 0];
  to = {from.data, from.row, from.column, batch_bytes / size, factor, multiply ? 1 : 0};
  return &to;
}

}  // namespace tilekiln::matrix
