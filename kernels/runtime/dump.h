// The inputs of calls as files, to be run again: `tilekiln replay`.
#pragma once
#include "tilekiln/operator.h"

namespace tilekiln {

// Writes what a call is given into a new file of the folder TILEKILN_DUMP, <operator>-<process>-<number>.safetensors, in the
// format of that name, and says so in the log. Not where the files of this process would grow beyond TILEKILN_DUMP_SIZE.
// `args` may be wrong in any way that its types allow: an array that cannot be read is left out.
void dump_call(const tilekiln_operator& table, const void* args) noexcept;

}  // namespace tilekiln
