// SPDX-License-Identifier: MIT
// A zlib stream (RFC 1950) back to what it was, for callers that have no zlib: a library needs libc and libstdc++ alone.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace tilekiln {

// Tells whether `bytes` of `from` are a whole stream of exactly `length` bytes, which then stand in `to`.
bool inflate(const unsigned char* from, size_t bytes, char* to, size_t length) noexcept;

}  // namespace tilekiln
