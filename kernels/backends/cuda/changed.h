// SPDX-License-Identifier: MIT
// The image of a kernel that a library holds as its changes to another one's, as build_support/toolchains/cubin.py
// writes them: the bytes of both, as numbers; then of each change how many bytes are the same before it, how many are
// others, and these. Last: 0 0. A number is 7 bits a byte, low ones first; a byte of 128 and more has another one after
// it.
#pragma once
#include <stdlib.h>
#include <string.h>

namespace tilekiln::cuda {

struct Image {
  void* bytes = nullptr;

  Image() = default;
  Image(const Image&) = delete;
  ~Image() { free(bytes); }

  // Makes the image. Returns whether there was memory for it.
  bool make(const void* of, const void* changes) {
    const auto* at = static_cast<const unsigned char*>(changes);
    const auto number = [&at] {
      size_t value = 0;
      int bits = 0;
      do value |= size_t(*at & 127) << bits, bits += 7;
      while (*at++ >= 128);
      return value;
    };
    const size_t size = number();
    bytes = malloc(size);
    if (bytes == nullptr) return false;
    memcpy(bytes, of, size);
    for (auto* to = static_cast<unsigned char*>(bytes);;) {
      to += number();
      const size_t others = number();
      if (others == 0) return true;
      memcpy(to, at, others);
      to += others, at += others;
    }
  }
};

}  // namespace tilekiln::cuda
