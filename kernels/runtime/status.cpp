// SPDX-License-Identifier: MIT
#include "kernels/runtime/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <exception>
#include <new>

namespace tilekiln {
namespace {

// A plain array: nothing to destroy when the thread ends, so the library needs no thread-exit hook for it.
thread_local char buffer[error_capacity];
thread_local Refusals reasons;

constexpr char how_to_dump[] = "TILEKILN_DUMP=FOLDER writes them, and tilekiln replay runs them again";

}  // namespace

Text& Text::add(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const bool room = length_ < capacity_;
  const int written = vsnprintf(room ? data_ + length_ : nullptr, room ? capacity_ - length_ : 0, format, arguments);
  va_end(arguments);
  if (written > 0) length_ += static_cast<size_t>(written);
  return *this;
}

const char* error_text() noexcept { return buffer; }

char* error_buffer() noexcept {
  reasons.clear();
  return buffer;
}

Refusals& error_refusals() noexcept { return reasons; }

void set_error_text(const char* text) noexcept {
  if (text == buffer) return;
  reasons.clear();
  snprintf(buffer, error_capacity, "%s", text);
}

tilekiln_status fail(tilekiln_status status, const char* format, ...) noexcept {
  reasons.clear();
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(buffer, error_capacity, format, arguments);
  va_end(arguments);
  return status;
}

tilekiln_status fail_argument(const char* argument, const char* format, ...) noexcept {
  reasons.clear();
  reasons.add(TILEKILN_REFUSED_ARGUMENT).axis = reasons.keep("%s", argument);
  const int prefix = snprintf(buffer, error_capacity, "%s: ", argument);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(buffer + prefix, error_capacity - static_cast<size_t>(prefix), format, arguments);
  va_end(arguments);
  return TILEKILN_INVALID_ARGUMENT;
}

tilekiln_status fail_device(tilekiln_status status, const char* have, const char* want) noexcept {
  tilekiln_refusal& refusal = reasons.last();
  refusal.reason = TILEKILN_REFUSED_DEVICE;
  refusal.have = reasons.keep("%s", have);
  refusal.want = reasons.keep("%s", want);
  return status;
}

tilekiln_status check_range(const char* argument, long long value, long long least, long long most) noexcept {
  if (value >= least && value <= most) return TILEKILN_OK;
  return fail_argument(argument, "was %lld, must be from %lld to %lld", value, least, most);
}

tilekiln_status fail_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return fail(TILEKILN_OUT_OF_MEMORY, "out of memory; nothing was written");
  } catch (const std::exception& error) {
    return fail(TILEKILN_INTERNAL, "internal error: %s; please report it, with the call's inputs: %s", error.what(),
                how_to_dump);
  } catch (...) {
    return fail(TILEKILN_INTERNAL,
                "internal error: an exception of unknown type; please report it, with the call's inputs: %s",
                how_to_dump);
  }
}

}  // namespace tilekiln
