// SPDX-License-Identifier: MIT
// Sentences built in a buffer the caller owns: no allocation, so that an error can always be told.
#pragma once
#include <stddef.h>

namespace tilekiln {

// Writes at most `capacity` bytes, the final 0 included, and keeps counting past the end.
class Text {
 public:
  Text(char* data, size_t capacity) : data_(data), capacity_(capacity) {
    if (capacity_ != 0) data_[0] = 0;
  }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  __attribute__((format(printf, 2, 3))) Text& add(const char* format, ...);
  // The length of the whole text, without the final 0, even when it was cut.
  size_t length() const { return length_; }

 private:
  char* data_;
  size_t capacity_;
  size_t length_ = 0;
};

}  // namespace tilekiln
