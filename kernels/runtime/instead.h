// SPDX-License-Identifier: MIT
// Calls that another operator of the library answers in less time: `instead` of an operator.yaml.
#pragma once
#include <stdint.h>

#include "tilekiln/tilekiln.h"

namespace tilekiln {

// Rule for calls with a small length, such as few queries.
struct Instead {
  const char* family;  // the main one of the other operator
  int ndim;            // of the arrays by position
  int place[2];        // of the length, as arrays lie and with exchanged dimensions; the other one of 1 and 2 are heads
  struct Most {
    int32_t device_type;
    int64_t length;
    // Longer calls too, up to `grouped` and to `times` the heads of the first array that share one of the others, over `keys` of those and more.
    int64_t grouped, times, keys;
  } most[3];          // by device; ended by length 0
  int64_t fewest;     // the other arrays' length from which that pays: a tiny call does not pay for what it cannot have
  int32_t dtypes[4];  // of the first array; ended by 0
};

// Tells whether arrays of a call are as a rule has it: count of them by position, none checked yet.
bool is_short(const Instead& rule, const tilekiln_tensor* const* arrays, int count, bool exchanged);
// Tells whether this library's instance of that number is of a family.
bool is_of_family(int64_t instance, const char* family);
// Tells whether an instance was measured to be the best for such a call of an operator (tuned.h). `args`: with its size checked.
bool has_measured(const char* name, const void* args, size_t bytes, size_t instance_offset);

}  // namespace tilekiln
