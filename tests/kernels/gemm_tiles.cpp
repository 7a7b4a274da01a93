// SPDX-License-Identifier: MIT
// The memory that a unit works in, by the tile of a product: how far sums and a packed b reach in the scratch. Prints, for each
// tile given as m and k, the rows of sums, the words of b that lie together, and a hash of out, which is the same for all.
#include "kernels/gemm/cpu/tall.h"
#include "kernels/gemm/cpu/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

using namespace tilekiln;
using namespace tilekiln::cpu;

constexpr Stages stages{pack_lanes_fp32<float>,
                        pack_rows<float, Fp32Words>,
                        copy_rows_fp32<float>,
                        pack_lanes_fp32<float>,
                        sizeof(float),
                        true,
                        true,
                        nullptr};
constexpr int M = 480, N = 192, K = 1100;
constexpr float kUntouched = 1e30f;

template <size_t n> size_t reach(const float (&values)[n]) {
  size_t end = n;
  while (end != 0 && values[end - 1] == kUntouched) --end;
  return end;
}

int main(int count, char** given) {
  std::vector<float> a(M * K), b(K * N), out(M * N);
  unsigned state = 1;
  for (auto* all : {&a, &b})
    for (float& one : *all) one = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) / 8388608.f - 1;
  auto* const scratch = static_cast<GemmScratch*>(aligned_alloc(64, (sizeof(GemmScratch) + 63) / 64 * 64));
  for (int i = 1; i + 1 < count; i += 2) {
    matrix::Problem p = {};
    p.m = M, p.n = N, p.k = K, p.a = a.data(), p.b = b.data(), p.out = out.data();
    p.lda = K, p.ldb = K, p.b_columns = true, p.out_row = N, p.alpha = 1;
    p.tile_m = atoi(given[i]), p.tile_k = atoi(given[i + 1]);
    for (float& one : scratch->sums) one = kUntouched;
    for (float& one : scratch->b) one = kUntouched;
    // All rows at once, and rows of one tile: b is packed for several tiles at once, and for one tile by tile_k.
    run_unit<ComputeFp32>(stages, p, {0, M, 0, N}, *scratch);
    const size_t rows = reach(scratch->sums) / kUnitColumns + 1;
    unsigned hash = 2166136261u;
    for (const float one : out) {
      unsigned bits;
      memcpy(&bits, &one, sizeof bits);
      hash = (hash ^ bits) * 16777619u;
    }
    for (float& one : scratch->b) one = kUntouched;
    run_unit<ComputeFp32>(stages, p, {0, 30, 0, N}, *scratch);
    printf("%zu %zu %08x\n", rows, reach(scratch->b) / kPanel, hash);
  }
  free(scratch);
}
