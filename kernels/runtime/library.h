// SPDX-License-Identifier: MIT
// The dispatchers of this library's own table.
#pragma once
#include "kernels/runtime/dispatch.h"

namespace tilekiln {

// Made at the first call on a device, for every family: that is when the device, TILEKILN_ISA and TILEKILN_TARGET are
// looked at. Throws std::bad_alloc.
const Dispatcher& dispatcher(uint32_t family, Device device = {});
// The dispatcher that may choose in place of one of the host which has found an instance of this target: itself, or where the system
// refuses the target to this process one that knows. The system is asked here, once, and not before such an instance is wanted.
const Dispatcher& permitted(const Dispatcher& dispatcher, const Target& target);
// Tells whether the system was asked and refuses nothing.
bool all_permitted();
// The dispatcher of a family by name, a constant of the program, or NO_KERNEL: the library's plan has no instance of
// it. Throws std::bad_alloc.
[[nodiscard]] tilekiln_status find_dispatcher(const char* family, Device device, const Dispatcher** found);

}  // namespace tilekiln
