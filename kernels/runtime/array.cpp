// SPDX-License-Identifier: MIT
#include "kernels/runtime/array.h"

#include <stdio.h>

namespace tilekiln {
namespace {

using ll = long long;

struct Code {
  int code;
  const char* prefix;
  bool bits;  // the number of bits follows the prefix
};
// DLPack's type codes.
constexpr Code codes[] = {
    {0, "int", true},
    {1, "uint", true},
    {2, "float", true},
    {3, "opaque", true},
    {4, "bfloat", true},
    {5, "complex", true},
    {6, "bool", false},
    {7, "float8_e3m4", false},
    {8, "float8_e4m3", false},
    {9, "float8_e4m3b11fnuz", false},
    {10, "float8_e4m3fn", false},
    {11, "float8_e4m3fnuz", false},
    {12, "float8_e5m2", false},
    {13, "float8_e5m2fnuz", false},
    {14, "float8_e8m0fnu", false},
    {15, "float6_e2m3fn", false},
    {16, "float6_e3m2fn", false},
    {17, "float4_e2m1fn", false},
};

tilekiln_status fail_addresses(const Array& array, int dimension) {
  return fail_argument(array.name, "stride %lld over %lld elements of dimension %d leaves the address space",
                       static_cast<ll>(array.stride[dimension]), static_cast<ll>(array.shape[dimension]), dimension);
}

// The first and last byte of an array that leaves the address space, as far as they are found, for the error.
tilekiln_status fail_extent(Array& array) {
  const int64_t bytes = dtype_bytes(array.dtype);
  int64_t low = 0, high = bytes;  // byte offsets from data
  for (int i = 0; i < array.ndim; ++i) {
    int64_t step = 0, reach = 0;
    const bool wraps =
        __builtin_mul_overflow(array.stride[i], bytes, &step) ||
        __builtin_mul_overflow(step, array.shape[i] - 1, &reach) ||
        (reach < 0 ? __builtin_add_overflow(low, reach, &low) : __builtin_add_overflow(high, reach, &high));
    if (wraps) return fail_addresses(array, i);
  }
  int widest = 0;
  for (int i = 1; i < array.ndim; ++i) {
    const auto reach = [&](int d) { return __int128(array.stride[d]) * (array.shape[d] - 1); };
    if (reach(i) * (reach(i) < 0 ? -1 : 1) > reach(widest) * (reach(widest) < 0 ? -1 : 1)) widest = i;
  }
  return fail_addresses(array, widest);
}

}  // namespace

const char* dtype_name(int32_t dtype, char* buffer) {
  switch (dtype) {
    case TILEKILN_FP32: return "fp32";
    case TILEKILN_FP16: return "fp16";
    case TILEKILN_BF16: return "bf16";
    case TILEKILN_FP8: return "fp8";
    case TILEKILN_BF8: return "bf8";
    case TILEKILN_FP8FNUZ: return "fp8fnuz";
    case TILEKILN_BF8FNUZ: return "bf8fnuz";
    case TILEKILN_FP64: return "fp64";
    default: break;
  }
  const int code = dtype >> 8, bits = dtype & 0xff;
  for (const Code& known : codes) {
    if (known.code != code) continue;
    if (!known.bits) return known.prefix;
    snprintf(buffer, 32, "%s%d", known.prefix, bits);
    return buffer;
  }
  snprintf(buffer, 32, "code %d of %d bits", code, bits);
  return buffer;
}

tilekiln_status check_array(const char* name, const tilekiln_tensor& tensor, Array* array) {
  array->name = name;
  array->data = static_cast<char*>(tensor.data);
  array->dtype = tensor.dtype;
  array->ndim = tensor.ndim;
  if (tensor.ndim < 0 || tensor.ndim > TILEKILN_MAX_NDIM) {
    return fail_argument(name, "ndim was %d, must be from 0 to %d", tensor.ndim, TILEKILN_MAX_NDIM);
  }
  if ((tensor.dtype & 0xff) == 0 || tensor.dtype < 0) {
    char buffer[32];
    return fail_argument(name, "dtype was %s, must have a size", dtype_name(tensor.dtype, buffer));
  }
  for (int i = 0; i < TILEKILN_MAX_NDIM; ++i) {  // those past ndim stay as they are here
    array->shape[i] = 1;
    array->stride[i] = 0;
  }
  bool empty = false, wraps = false;
  int64_t low = 0, high = 0;  // of the elements, from data
  for (int i = 0; i < tensor.ndim; ++i) {
    const int64_t length = tensor.shape[i], stride = length > 1 ? tensor.stride[i] : 0;
    if (length < 0)
      return fail_argument(name, "dimension %d was %lld long, must be 0 or more", i, static_cast<ll>(length));
    empty |= length == 0;
    array->shape[i] = length;
    array->stride[i] = stride;
    int64_t reach = 0;
    wraps |= __builtin_mul_overflow(stride, length - 1, &reach);
    if (__builtin_expect(reach < 0, 0))
      wraps |= __builtin_add_overflow(low, reach, &low);
    else
      wraps |= __builtin_add_overflow(high, reach, &high);
  }
  array->first = array->last = reinterpret_cast<uint64_t>(array->data);
  if (empty) {
    for (int64_t& stride : array->stride) stride = 0;
    return TILEKILN_OK;
  }
  if (array->data == nullptr) return fail_argument(name, "data was null, must point to the elements");
  const int64_t bytes = dtype_bytes(tensor.dtype);
  const int64_t alignment = bytes & -bytes;
  if ((reinterpret_cast<uint64_t>(array->data) & static_cast<uint64_t>(alignment - 1)) != 0) {
    return fail_argument(name, "data was at %p, must be aligned to %lld bytes, the size of an element",
                         static_cast<void*>(array->data), static_cast<ll>(alignment));
  }
  wraps |= __builtin_mul_overflow(low, bytes, &low) || __builtin_add_overflow(high, 1, &high) ||
           __builtin_mul_overflow(high, bytes, &high) ||
           __builtin_sub_overflow(array->first, uint64_t(0) - static_cast<uint64_t>(low), &array->first) ||
           __builtin_add_overflow(array->last, static_cast<uint64_t>(high), &array->last);
  return __builtin_expect(wraps, 0) ? fail_extent(*array) : TILEKILN_OK;
}

tilekiln_status check_dtype(const Array& array, int32_t dtype, const char* what) {
  if (array.dtype == dtype) return TILEKILN_OK;
  char buffer[32];
  const bool fnuz = array.dtype == TILEKILN_FP8FNUZ || array.dtype == TILEKILN_BF8FNUZ;
  return fail_argument(array.name, "dtype was %s, must be %s%s", dtype_name(array.dtype, buffer), what,
                       fnuz ? ": FNUZ formats have kernels for gfx942 alone, convert it" : "");
}

tilekiln_status check_last_contiguous(const Array& array) {
  const int last = array.ndim - 1;
  if (last < 0 || array.shape[last] <= 1 || array.empty() || array.stride[last] == 1) return TILEKILN_OK;
  return fail_argument(
      array.name,
      "the stride of its last dimension was %lld, must be 1: pass a copy whose last dimension is contiguous",
      static_cast<ll>(array.stride[last]));
}

tilekiln_status check_ndim(const Array& array, int ndim, const char* form) {
  if (array.ndim == ndim) return TILEKILN_OK;
  return fail_argument(array.name, "had %d dimensions, must have %d: %s", array.ndim, ndim, form);
}

tilekiln_status check_length(const Array& array, int index, const char* dimension, int64_t length, const char* why) {
  if (array.shape[index] == length) return TILEKILN_OK;
  return fail_argument(array.name, "%s was %lld, must be %lld, %s", dimension, static_cast<ll>(array.shape[index]),
                       static_cast<ll>(length), why);
}

}  // namespace tilekiln
