// SPDX-License-Identifier: MIT
// The canonical names of instances, made from their rows: 10,000 of them as text would be a megabyte of a library.
#pragma once
#include "kernels/runtime/table.h"
#include "kernels/runtime/text.h"

namespace tilekiln {

// The longest name that fits a buffer of a caller, the final 0 included.
constexpr size_t name_capacity = 512;

// The row of an instance of a table, which must have it.
inline const Row& row_of(const Table& table, int64_t instance) {
  const RowRef at = table.plan[instance];
  return table.sources[at.source].rows[at.index];
}

// The family of an instance of a table, which must have it; `index`: among the instances of the family.
const Family& family_of(const Table& table, int64_t instance, uint32_t* index);

// Adds the name of an instance of a table, which must have it: the family, the words of its axes, its algorithm, its
// target, as the generator lists it.
void add_name(Text& text, const Table& table, int64_t instance);

// Name as a text that stays as long as the process; null when there is no memory for it.
const char* lasting_name(const Table& table, int64_t instance) noexcept;

}  // namespace tilekiln
