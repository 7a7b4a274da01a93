// SPDX-License-Identifier: MIT
#include "fault.h"

#include <cstdarg>
#include <cstdio>

namespace executor {

void fail(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Fault(text);
}

}  // namespace executor
