// The dispatchers of this library's own table.
#pragma once
#include "tilekiln/runtime/dispatch.h"

namespace tilekiln {

// Made at the first call: that is when the machine and TILEKILN_ISA are looked at.
const Dispatcher& dispatcher(uint32_t family);

}  // namespace tilekiln
