// The inputs of calls as files, to be run again: `tilekiln replay`.
#pragma once
#include "tilekiln/operator.h"

namespace tilekiln {

// Writes what a call is given into a new file of the folder TILEKILN_DUMP, <operator>-<process>-<number>.safetensors, in the
// format of that name, and says so in the log. Not of a call whose arguments are refused, and not where the files of this
// process would grow beyond TILEKILN_DUMP_SIZE.
void dump_call(const tilekiln_operator& table, const void* args) noexcept;

}  // namespace tilekiln
