// A plain read loop: how fast one thread gets memory into registers.
#include <cstddef>

typedef unsigned long long Vector __attribute__((vector_size(64), aligned(1)));

// Reads bytes / 512 blocks of 512 bytes. The result depends on all of them, so nothing is left out.
extern "C" __attribute__((visibility("default"))) unsigned long long tilekiln_read(const void* data, size_t bytes) {
  const Vector* at = static_cast<const Vector*>(data);
  Vector sum[8] = {};
  for (size_t i = 0; i + 8 <= bytes / sizeof(Vector); i += 8)
    for (int j = 0; j < 8; ++j) sum[j] ^= at[i + j];
  for (int j = 1; j < 8; ++j) sum[0] ^= sum[j];
  unsigned long long all = 0;
  for (int j = 0; j < 8; ++j) all ^= sum[0][j];
  return all;
}
