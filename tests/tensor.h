// SPDX-License-Identifier: MIT
// Arguments of the C API for test programs.
#ifndef TILEKILN_TESTS_TENSOR_H
#define TILEKILN_TESTS_TENSOR_H
#include <stdint.h>

#include <vector>

#include "tilekiln/tilekiln.h"

// A dense array of the host, row-major.
inline tilekiln_tensor tensor(const void* data, int32_t dtype, const std::vector<int64_t>& shape) {
  tilekiln_tensor t = {};
  t.data = const_cast<void*>(data);
  t.dtype = dtype;
  t.ndim = static_cast<int32_t>(shape.size());
  t.device_type = TILEKILN_CPU;
  int64_t stride = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    t.shape[i] = shape[i];
    t.stride[i] = stride;
    stride *= shape[i];
  }
  return t;
}

#endif
