// SPDX-License-Identifier: MIT
// A program of tile words over given memory, compiled once with the instructions and once with the emulation.
#include "kernels/backends/cpu/amx/tiles.h"
#include "tiles_test.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// c, a and b from memory whose rows lie `stride` bytes apart, the product, c back again.
template <class Dot> void multiply(test::Operands& o, Dot&& dot) {
  using namespace tiles;
  fence();
  load<0>(o.c, o.stride);
  load<1>(o.a, o.stride);
  load_t1<7>(o.b, o.stride);
  dot();
  store<0>(o.c, o.stride);
}

void product(test::Product which, test::Operands& o) {
  using namespace tiles;
  switch (which) {
    case test::Product::bf16: return multiply(o, []() { dot_bf16<0, 1, 7>(); });
    case test::Product::ss: return multiply(o, []() { dot_ss<0, 1, 7>(); });
    case test::Product::us: return multiply(o, []() { dot_us<0, 1, 7>(); });
    case test::Product::su: return multiply(o, []() { dot_su<0, 1, 7>(); });
    case test::Product::uu: return multiply(o, []() { dot_uu<0, 1, 7>(); });
  }
}

// All eight tiles at once: four accumulators, two of each operand; two are zeroed, one of those is never used; then stored in a row.
void block(const unsigned char* from, unsigned char* to) {
  using namespace tiles;
  fence();
  load<4>(from, 64), load_t1<5>(from + 1024, 64), load<6>(from + 2048, 64), load_t1<7>(from + 3072, 64);
  load<0>(from + 4096, 64), zero<1>(), load<2>(from + 5120, 128), zero<3>();
  for (int k = 0; k < 3; ++k) {
    dot_bf16<0, 4, 6>();
    dot_bf16<1, 4, 7>();
    dot_bf16<2, 5, 6>();
  }
  store<0>(to, 64), store<1>(to + 1024, 64), store<2>(to + 2048, 64), store<3>(to + 3072, 64);
}

}  // namespace

extern const test::Words TILEKILN_WORDS;
const test::Words TILEKILN_WORDS = {tiles::configure, tiles::release, product, block};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
