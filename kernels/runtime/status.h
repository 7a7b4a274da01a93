// SPDX-License-Identifier: MIT
// Status of a call that fails: a code that is returned and a sentence that stays with the thread.
#pragma once
#include "kernels/runtime/refusals.h"
#include "kernels/runtime/text.h"
#include "tilekiln/tilekiln.h"

namespace tilekiln {

// The longest sentence kept, the final 0 included.
constexpr size_t error_capacity = 4096;

// Sentence of this thread's last failed call, "" if none has failed.
const char* error_text() noexcept;
void set_error_text(const char* text) noexcept;
// The buffer behind error_text(), error_capacity bytes, for a Text to write into. The reasons of the sentence before are forgotten.
char* error_buffer() noexcept;
// Reasons of this thread's sentence.
Refusals& error_refusals() noexcept;

// Sets the sentence and returns the code: `return fail(TILEKILN_NO_KERNEL, "...")`.
[[nodiscard]] __attribute__((format(printf, 2, 3), cold)) tilekiln_status fail(tilekiln_status status,
                                                                               const char* format, ...) noexcept;
// Fails for an argument: "<argument>: <what it was and what it must be>".
[[nodiscard]] __attribute__((format(printf, 2, 3), cold)) tilekiln_status fail_argument(const char* argument,
                                                                                        const char* format,
                                                                                        ...) noexcept;

// Says of the error just made that it is the device: another library may have `want`, where this one has `have`.
[[nodiscard]] tilekiln_status fail_device(tilekiln_status status, const char* have, const char* want) noexcept;

// Checks that a number lies in [least, most].
[[nodiscard]] tilekiln_status check_range(const char* argument, long long value, long long least,
                                          long long most) noexcept;

// Turns the exception being handled into a code and a sentence. Only inside a catch block.
[[nodiscard]] tilekiln_status fail_exception() noexcept;

}  // namespace tilekiln

// Leaves the function with the status of `call` unless it is OK.
#define TILEKILN_TRY(call)                                                \
  do {                                                                    \
    const tilekiln_status tilekiln_try_status = (call);                   \
    if (tilekiln_try_status != TILEKILN_OK) return tilekiln_try_status;   \
  } while (0)
