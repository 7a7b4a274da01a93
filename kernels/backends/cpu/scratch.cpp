// SPDX-License-Identifier: MIT
#include "kernels/backends/cpu/scratch.h"

#include <stdlib.h>

namespace tilekiln {
namespace {

struct Scratch {
  void* data = nullptr;
  size_t bytes = 0;
  ~Scratch() {
    free(data);
    data = nullptr;
    bytes = 0;
  }
};
thread_local Scratch scratch;

}  // namespace

void* thread_scratch(size_t bytes) noexcept {
  Scratch& own = scratch;
  if (own.bytes >= bytes && own.data != nullptr) return own.data;
  const size_t whole = (bytes + 4095) / 4096 * 4096;
  void* const data = aligned_alloc(64, whole);
  if (data == nullptr) return nullptr;
  free(own.data);
  own.data = data;
  own.bytes = whole;
  return data;
}

}  // namespace tilekiln
