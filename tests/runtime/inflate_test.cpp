// SPDX-License-Identifier: MIT
// Streams of zlib's own, whole, cut and changed. Arguments: a file, which is inflated to the file of the second.
#include "kernels/runtime/inflate.h"

#include <stdio.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "check.h"

using namespace tilekiln;

int main(int count, char** words) {
  if (!CHECK(count == 4)) return check_result();
  FILE* const file = fopen(words[1], "rb");
  std::vector<unsigned char> stream(1 << 20);
  stream.resize(fread(stream.data(), 1, stream.size(), file));
  fclose(file);
  const size_t length = strtoul(words[2], nullptr, 10);
  std::vector<char> text(length + 1);
  CHECK(inflate(stream.data(), stream.size(), text.data(), length));
  FILE* const out = fopen(words[3], "wb");
  CHECK(fwrite(text.data(), 1, length, out) == length);
  fclose(out);
  // Another length, every prefix, and every byte changed: a refusal, and no write past the end (which sanitizers see).
  CHECK(!inflate(stream.data(), stream.size(), text.data(), length + 1));
  CHECK(length == 0 || !inflate(stream.data(), stream.size(), text.data(), length - 1));
  const size_t step = stream.size() / 400 + 1;
  for (size_t cut = 0; cut < stream.size(); cut += step) {
    const std::vector<unsigned char> part(stream.begin(), stream.begin() + static_cast<ptrdiff_t>(cut));
    CHECK(!inflate(part.data(), part.size(), text.data(), length));
  }
  for (size_t at = 2; at < stream.size(); at += step) {
    std::vector<unsigned char> changed = stream;
    changed[at] ^= 0x15;
    CHECK(!inflate(changed.data(), changed.size(), text.data(), length));
  }
  return check_result();
}
