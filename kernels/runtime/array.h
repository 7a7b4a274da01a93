// SPDX-License-Identifier: MIT
// Array arguments, and the checks that are the same for every family: addresses, dtype, shape, strides, overlaps.
#pragma once
#include "kernels/runtime/status.h"

namespace tilekiln {

// An array argument after check_array: everything in range, strides in elements and 0 where a dimension has no step.
struct Array {
  const char* name = nullptr;
  char* data;
  int32_t dtype;
  int32_t ndim;
  int64_t shape[TILEKILN_MAX_NDIM];
  int64_t stride[TILEKILN_MAX_NDIM];
  uint64_t first, last;  // the addresses of its first byte and past its last byte; equal when it has no element
  bool given() const { return name != nullptr; }
  bool empty() const { return first == last; }
};

// "fp32", "int64", "float8_e4m3fnuz": the name people know a dtype by. `buffer` holds at least 32 bytes.
const char* dtype_name(int32_t dtype, char* buffer);
constexpr int64_t dtype_bytes(int32_t dtype) { return ((dtype & 0xff) + 7) / 8; }

// Reads a tensor into an Array and checks what holds for every array, wherever it is: at most TILEKILN_MAX_NDIM dimensions, none
// negative, a known element size, data present and aligned, every address within the address space. Nothing is dereferenced.
[[nodiscard]] tilekiln_status check_array(const char* name, const tilekiln_tensor& tensor, Array* array);
// `what`: the sentence after "must be", such as "fp32" or "fp32, the dtype of q".
[[nodiscard]] tilekiln_status check_dtype(const Array& array, int32_t dtype, const char* what);
// Checks that elements of its last dimension lie side by side. The other strides may be any.
[[nodiscard]] tilekiln_status check_last_contiguous(const Array& array);
[[nodiscard]] tilekiln_status check_ndim(const Array& array, int ndim, const char* form);
// `dimension`: its name, such as "hdim"; `why`: where the right length comes from, such as "the hdim of q".
[[nodiscard]] tilekiln_status check_length(const Array& array, int index, const char* dimension, int64_t length,
                                           const char* why);

// Exact for arrays of any strides: do two arrays share a byte, does an array hold one byte in two elements? A search that
// would take too long (strides no allocator or slice makes) answers yes.
bool overlap(const Array& a, const Array& b);
bool overlaps_itself(const Array& a);

}  // namespace tilekiln
