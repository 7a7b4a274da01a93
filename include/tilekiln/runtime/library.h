// The dispatchers of this library's own table.
#pragma once
#include "tilekiln/runtime/dispatch.h"

namespace tilekiln {

// Made at the first call, for every family: that is when the machine and TILEKILN_ISA are looked at. Throws std::bad_alloc.
const Dispatcher& dispatcher(uint32_t family);
// The index of a family in Table::families; -1 when the library holds nothing of it.
int find_family(const char* name);

}  // namespace tilekiln
