// SPDX-License-Identifier: MIT
// A fault, which ends a load or a launch: a sentence whose first word is its kind.
#pragma once
#include <stdexcept>

namespace executor {

struct Fault : std::runtime_error { using std::runtime_error::runtime_error; };

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace executor
