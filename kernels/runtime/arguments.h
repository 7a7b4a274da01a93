// SPDX-License-Identifier: MIT
// The struct of any operator's arguments, read by the operator's table.
#pragma once
#include "kernels/runtime/text.h"
#include "tilekiln/tilekiln.h"

namespace tilekiln {

// Null: no operator of this library has the name, or `args` is not its struct.
const tilekiln_operator* operator_of(const char* name, const void* args);

inline const void* field_of(const tilekiln_argument& argument, const void* args) {
  return static_cast<const char*>(args) + argument.offset;
}
inline bool is_array(const tilekiln_argument& argument) {
  return argument.kind == TILEKILN_ARRAY || argument.kind == TILEKILN_RESULT || argument.kind == TILEKILN_WRITTEN;
}
// Null where it is not given.
inline const tilekiln_tensor* array_of(const tilekiln_argument& argument, const void* args) {
  return *static_cast<const tilekiln_tensor* const*>(field_of(argument, args));
}
// Tells whether it has a field and is other than without a word. Not of streams, of which there is stream_of.
bool is_given(const tilekiln_operator& table, const tilekiln_argument& argument, const void* args);
// Adds the value of what is no array, as JSON: 0.125, 1, "silu", [64, 0].
void add_value(Text& text, const tilekiln_argument& argument, const void* args);
// Null: the call runs in its caller, or the operator takes no stream.
tilekiln_stream* stream_of(const tilekiln_operator& table, const void* args);

}  // namespace tilekiln
