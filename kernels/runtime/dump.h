// SPDX-License-Identifier: MIT
// The inputs of calls as files, to be run again: `tilekiln replay`.
#pragma once
#include "tilekiln/operator.h"

namespace tilekiln {

// Record of a call: the line of the log that says so, with the file's path, and the bytes of arrays in it.
struct Dumped {
  static constexpr size_t path_capacity = 4096;
  char path[path_capacity] = "", line[path_capacity + 256] = "";
  uint64_t bytes = 0;
  bool written = false;
};

// Writes what a call is given into a new file of the folder TILEKILN_DUMP, <operator>-<process>-<number>.safetensors, in the
// format of that name. Nothing of a call whose arguments are refused, and a line without a file where the files of this
// process would grow beyond TILEKILN_DUMP_SIZE.
void dump_call(const tilekiln_operator& table, const void* args, Dumped& record) noexcept;
// Writes the record's line into the log.
void say(const Dumped& record) noexcept;
// Removes the file of a call that this operator refused and another one answers: a call has one record.
void withdraw(const Dumped& record) noexcept;

}  // namespace tilekiln
