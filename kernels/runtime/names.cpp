// SPDX-License-Identifier: MIT
#include "kernels/runtime/names.h"

#include <stdlib.h>
#include <string.h>

namespace tilekiln {
namespace {

const Target& target_of(const Table& table, uint8_t index) {
  uint32_t at = 0;
  while (table.targets[at].index != index) ++at;
  return table.targets[at];
}

void add_word(Text& text, const Axis& axis, const Row& row) {
  const uint64_t packed = axis.kind == 2 ? row.integers : row.codes;
  const uint64_t value = (packed >> axis.shift) & ((uint64_t(1) << axis.bits) - 1);
  if (axis.kind == 2) {
    text.add("%s%llu%s", axis.words[0], static_cast<unsigned long long>(value), axis.words[1]);
  } else {
    text.add("%s", axis.words[value]);
  }
}

}  // namespace

const Family& family_of(const Table& table, int64_t instance, uint32_t* index) {
  uint32_t at = 0;
  while (instance >= int64_t(table.families[at].first_instance) + table.families[at].instance_count) ++at;
  *index = at;
  return table.families[at];
}

void add_name(Text& text, const Table& table, int64_t instance) {
  const Row& row = row_of(table, instance);
  uint32_t index = 0;
  const Family& family = family_of(table, instance, &index);
  const Target& target = target_of(table, row.target);
  text.add("%s", family.name);
  for (uint32_t i = 0; i < family.axis_count; ++i) add_word(text, family.axes[i], row);
  text.add("_%s_", target.algorithms[index].list[row.algorithm].word);
  for (const char* at = target.name; *at != 0; ++at) text.add("%c", *at == '-' ? '_' : *at);
}

const char* lasting_name(const Table& table, int64_t instance) noexcept {
  // Made when first asked for, by whoever comes first; kept for good.
  static char** const made = static_cast<char**>(calloc(table.instance_count, sizeof(char*)));
  if (made == nullptr) return nullptr;
  char* name = __atomic_load_n(&made[instance], __ATOMIC_ACQUIRE);
  if (name != nullptr) return name;
  char buffer[name_capacity];
  Text text(buffer, sizeof(buffer));
  add_name(text, table, instance);
  name = strdup(buffer);
  char* other = nullptr;
  if (name == nullptr ||
      __atomic_compare_exchange_n(&made[instance], &other, name, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return name;
  free(name);
  return other;
}

}  // namespace tilekiln
