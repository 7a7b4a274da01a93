// SPDX-License-Identifier: MIT
#include "kernels/runtime/refusals.h"

#include <stdarg.h>
#include <stdio.h>

namespace tilekiln {

tilekiln_refusal& Refusals::add(tilekiln_reason reason) noexcept {
  tilekiln_refusal& added = list_[count_ < most ? count_ : most];
  count_ += count_ <= most ? 1 : 0;
  added = {};
  added.reason = reason;
  added.instance = -1;
  return added;
}

const char* Refusals::keep(const char* format, ...) noexcept {
  if (used_ == capacity) return "";
  char* const at = pool_ + used_;
  va_list arguments;
  va_start(arguments, format);
  const int written = vsnprintf(at, capacity - used_, format, arguments);
  va_end(arguments);
  const size_t whole = written < 0 ? 1 : static_cast<size_t>(written) + 1;
  used_ += whole < capacity - used_ ? whole : capacity - used_;
  return at;
}

}  // namespace tilekiln
