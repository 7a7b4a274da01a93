// SPDX-License-Identifier: MIT
// Plain read loops: how fast one thread gets memory into registers. Which of them is fastest depends on the machine, on where
// the memory is (L3 or DRAM) and on its neighbours, so there are several, and the fastest is the limit.
#include <cstddef>

typedef unsigned long long Vector __attribute__((vector_size(64), aligned(1)));

namespace {

constexpr size_t line = 64;

template <int Hint> inline __attribute__((always_inline)) void prefetch(const char* at) {
  if constexpr (Hint >= 0) __builtin_prefetch(at, 0, Hint);
}

// `Streams` places at once; Hint (-1: none): prefetched `Distance` bytes ahead. The result depends on
// every line, so nothing is left out.
template <int Streams, int Hint = -1, int Distance = 0> unsigned long long read(const char* data, size_t bytes) {
  constexpr int lines = Streams >= 4 ? 2 : 8 / Streams;  // 8 registers of sums
  Vector sum[Streams * lines] = {};
  const size_t part = bytes / Streams / (lines * line) * (lines * line);
  for (size_t i = 0; i < part; i += lines * line) {
#pragma GCC unroll 8
    for (int s = 0; s < Streams; ++s) {
#pragma GCC unroll 8
      for (int j = 0; j < lines; ++j) {
        const char* at = data + s * part + i + j * line;
        prefetch<Hint>(at + Distance);
        sum[s * lines + j] ^= *reinterpret_cast<const Vector*>(at);
      }
    }
  }
  Vector all = {};
#pragma GCC unroll 8
  for (int j = 0; j < Streams * lines; ++j) all ^= sum[j];
  for (size_t i = Streams * part; i + line <= bytes; i += line) all ^= *reinterpret_cast<const Vector*>(data + i);
  unsigned long long word = 0;
  for (int j = 0; j < 8; ++j) word ^= all[j];
  return word;
}

using Read = unsigned long long (*)(const char*, size_t);
constexpr Read loops[] = {read<1>, read<2>, read<4>, read<1, 3, 2048>, read<1, 3, 8192>, read<2, 2, 8192>};

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int tilekiln_read_loops() { return sizeof(loops) / sizeof(loops[0]); }

// Reads every whole line of 64 bytes once, by loop 0 <= loop < tilekiln_read_loops().
EXPORTED unsigned long long tilekiln_read(int loop, const char* data, size_t bytes) { return loops[loop](data, bytes); }
