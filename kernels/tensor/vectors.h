// SPDX-License-Identifier: MIT
// Rows of a move as rows of vectors of up to 16 bytes, for the host side of devices.
#pragma once
#include <cstdint>

#include "kernels/tensor/engine.h"

namespace tilekiln::tensor {

// Elements, a power of two up to 16 bytes, that every step of `length` > 1 and address lets move at once. Steps and columns count them then.
inline long long as_vectors(Move* m) {
  long long count = 16 >> m->bytes;
  const auto fit = [&](long long step) {
    while (step % count != 0) count /= 2;
  };
  const auto fit_address = [&](const void* address) {
    while (reinterpret_cast<uintptr_t>(address) % (static_cast<uintptr_t>(count) << m->bytes) != 0) count /= 2;
  };
  for (int i = 0; i < kOuter; ++i) {
    if (m->outer[i] > 1) fit(m->outer_x[i]), fit(m->outer_y[i]);
  }
  if (m->rows > 1) fit(m->row_x), fit(m->row_y);
  fit(m->columns);
  fit_address(m->x), fit_address(m->y);
  for (int i = 0; i < kOuter; ++i) m->outer_x[i] /= count, m->outer_y[i] /= count;
  m->row_x /= count, m->row_y /= count, m->columns /= count;
  return count;
}

}  // namespace tilekiln::tensor
