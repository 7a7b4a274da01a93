// The dispatchers of this library's own table.
#pragma once
#include "kernels/runtime/dispatch.h"

namespace tilekiln {

// Made at the first call on a device, for every family: that is when the device, TILEKILN_ISA and TILEKILN_TARGET are
// looked at. Throws std::bad_alloc.
const Dispatcher& dispatcher(uint32_t family, Device device = {});
// The dispatcher of a family by name, a constant of the program, or NO_KERNEL: the library's plan has no instance of
// it. Throws std::bad_alloc.
[[nodiscard]] tilekiln_status find_dispatcher(const char* family, Device device, const Dispatcher** found);

}  // namespace tilekiln
