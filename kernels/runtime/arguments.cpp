// SPDX-License-Identifier: MIT
#include "kernels/runtime/arguments.h"

#include <string.h>

#include <cmath>

namespace tilekiln {
namespace {

// The bytes that a kind has in the struct; 0 where it has no field, or one that is not told.
size_t bytes_of(uint8_t kind) {
  switch (kind) {
    case TILEKILN_ARRAY:
    case TILEKILN_RESULT:
    case TILEKILN_WRITTEN: return sizeof(void*);
    case TILEKILN_POINTER: return sizeof(const float*);
    case TILEKILN_FLOAT: return sizeof(float);
    case TILEKILN_FLAG:
    case TILEKILN_INT:
    case TILEKILN_WORD: return sizeof(int32_t);
    case TILEKILN_PAIR_INT: return 2 * sizeof(int32_t);
    case TILEKILN_PAIR_ULONG: return 2 * sizeof(uint64_t);
    case TILEKILN_INSTANCE: return sizeof(int64_t);
    case TILEKILN_DIMS: return sizeof(tilekiln_dims);
    default: return 0;
  }
}

// JSON has no NaN and no infinity: those are words.
void add_float(Text& text, float value) {
  if (std::isfinite(value)) {
    text.add("%.9g", static_cast<double>(value));
  } else {
    text.add("\"%s\"", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  }
}

void add_word(Text& text, const tilekiln_argument& argument, int32_t value) {
  for (int32_t i = 0; argument.words[i] != nullptr; ++i) {
    if (i == value) {
      text.add("\"%s\"", argument.words[i]);
      return;
    }
  }
  text.add("%d", value);
}

}  // namespace

const tilekiln_operator* operator_of(const char* name, const void* args) {
  if (args == nullptr) return nullptr;
  int32_t count = 0;
  const tilekiln_operator* const* operators = tilekiln_operators(&count);
  for (int32_t i = 0; i < count; ++i) {
    if (strcmp(operators[i]->name, name) != 0) continue;
    // Every struct of arguments begins with its size.
    return *static_cast<const size_t*>(args) == operators[i]->args_size ? operators[i] : nullptr;
  }
  return nullptr;
}

bool is_given(const tilekiln_operator& table, const tilekiln_argument& argument, const void* args) {
  const size_t bytes = bytes_of(argument.kind);
  return bytes != 0 && memcmp(field_of(argument, args), field_of(argument, table.defaults), bytes) != 0;
}

void add_value(Text& text, const tilekiln_argument& argument, const void* args) {
  const void* field = field_of(argument, args);
  const auto* ints = static_cast<const int32_t*>(field);
  switch (argument.kind) {
    case TILEKILN_POINTER: add_float(text, **static_cast<const float* const*>(field)); return;
    case TILEKILN_FLOAT: add_float(text, *static_cast<const float*>(field)); return;
    case TILEKILN_WORD: add_word(text, argument, *ints); return;
    case TILEKILN_PAIR_INT: text.add("[%d, %d]", ints[0], ints[1]); return;
    case TILEKILN_PAIR_ULONG: {
      const auto* pair = static_cast<const uint64_t*>(field);
      text.add("[%llu, %llu]", static_cast<unsigned long long>(pair[0]), static_cast<unsigned long long>(pair[1]));
      return;
    }
    case TILEKILN_INSTANCE: text.add("%lld", static_cast<long long>(*static_cast<const int64_t*>(field))); return;
    case TILEKILN_DIMS: {
      const auto& dims = *static_cast<const tilekiln_dims*>(field);
      text.add("[");
      for (int i = 0; i < dims.count && i < TILEKILN_MAX_NDIM; ++i) text.add("%s%d", i == 0 ? "" : ", ", dims.dim[i]);
      text.add("]");
      return;
    }
    default: text.add("%d", *ints); return;
  }
}

tilekiln_stream* stream_of(const tilekiln_operator& table, const void* args) {
  for (int i = 0; i < table.argument_count; ++i) {
    const tilekiln_argument& argument = table.arguments[i];
    if (argument.kind == TILEKILN_STREAM) return *static_cast<tilekiln_stream* const*>(field_of(argument, args));
  }
  return nullptr;
}

}  // namespace tilekiln
