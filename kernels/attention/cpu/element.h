// SPDX-License-Identifier: MIT
// An element of a cache by its bits: rows are copied and unpacked whatever numbers they hold.
#pragma once

#include <cstdint>

#include "kernels/backends/target.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

template <int Bytes> struct Bits;
template <> struct Bits<1> { using Type = uint8_t; };
template <> struct Bits<2> { using Type = uint16_t; };
template <> struct Bits<4> { using Type = uint32_t; };

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
