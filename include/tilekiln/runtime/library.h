// The dispatchers of this library's own table.
#pragma once
#include "tilekiln/runtime/dispatch.h"

namespace tilekiln {

// Made at the first call, for every family: that is when the machine and TILEKILN_ISA are looked at. Throws
// std::bad_alloc.
const Dispatcher& dispatcher(uint32_t family);
// That of a family by name, a constant of the program, or NO_KERNEL: the library's plan has no instance of it. Throws
// std::bad_alloc.
[[nodiscard]] tilekiln_status find_dispatcher(const char* family, const Dispatcher** found);

}  // namespace tilekiln
