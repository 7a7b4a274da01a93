// SPDX-License-Identifier: MIT
// The C ABI's answer to which problem a call is.
#include <string.h>

#include "kernels/runtime/choose.h"
#include "kernels/runtime/status.h"
#include "kernels/runtime/tuned.h"
#include "tilekiln/tilekiln.h"

using namespace tilekiln;

tilekiln_status tilekiln_describe(const char* operator_name, const void* args, char* text, size_t capacity,
                                  size_t* length) {
  if (operator_name == nullptr) return fail_argument("operator_name", "was null, must be a name of tilekiln_operators");
  int32_t count = 0;
  const tilekiln_operator* const* operators = tilekiln_operators(&count);
  for (int32_t i = 0; i < count; ++i) {
    if (strcmp(operators[i]->name, operator_name) != 0) continue;
    const Describing alone;
    size_t told = 0;
    const tilekiln_status status = operators[i]->why(args, text, capacity, &told);
    if (status != TILEKILN_OK) return status;
    Text call(told < capacity ? text + told : nullptr, told < capacity ? capacity - told : 0);
    call.add("call %016llx\n", static_cast<unsigned long long>(call_digest(*operators[i], args)));
    if (length != nullptr) *length = told + call.length();
    return TILEKILN_OK;
  }
  return fail_argument("operator_name", "was %s, must be an operator of this library (tilekiln_operators lists them)",
                       operator_name);
}
