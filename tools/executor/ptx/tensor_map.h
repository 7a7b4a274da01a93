// SPDX-License-Identifier: MIT
// Our own encoding of a CUtensorMap: the emulated driver's cuTensorMapEncodeTiled writes it, and tensor copies read it.
#pragma once
#include "formats.h"

namespace ptx {

using namespace executor;

struct TensorMap {
  u64 magic;  // kTensorMap
  u64 address;
  u64 strides[4];  // bytes, of dimensions 1 to 4
  u32 lengths[5];  // less 1
  u8 box[5];       // copied elements along each, less 1
  u8 rank, bytes, swizzle;
  u8 every[5];  // of a box's elements one in so many is copied
};
static_assert(sizeof(TensorMap) <= 128, "a CUtensorMap has 128 bytes");
enum : u64 { kTensorMap = 0x74696c656b696c6eull };

}  // namespace ptx
