// SPDX-License-Identifier: MIT
// The vocabulary of tiles: its instructions, where the processor has none by the trap, against its emulation, bit for bit; both
// against the rule's edges; and the end of a program that uses tiles without configuration. Exit code 77: the system refuses tiles.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/backends/cpu/tile_permission.h"
#include "tile_trap.h"
#include "tiles_test.h"

namespace tilekiln::cpu {
inline namespace instructions {
extern const test::Words instructions_of_tiles;
}
inline namespace emulated {
extern const test::Words emulated_tiles;
}
}  // namespace tilekiln::cpu

namespace tilekiln::test {
namespace {

const Words* const kBoth[] = {&cpu::instructions_of_tiles, &cpu::emulated_tiles};
std::mt19937 random_words(1);

// Three tiles, rows `stride` bytes apart.
struct Tiles {
  explicit Tiles(long stride) : stride(stride), bytes(3 * size_t(16 * stride)) {}
  Operands operands() { return {at(0), at(1), at(2), stride}; }
  unsigned char* at(int tile) { return bytes.data() + tile * 16 * stride; }
  template <class T> T get(int tile, int row, int column) {
    T x;
    memcpy(&x, at(tile) + row * stride + column * long(sizeof x), sizeof x);
    return x;
  }
  template <class T> void put(int tile, int row, int column, T x) {
    memcpy(at(tile) + row * stride + column * long(sizeof x), &x, sizeof x);
  }
  // The bf16 at a place, as the fp32 whose upper half it is.
  void put_bf16(int tile, int row, int column, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    put<uint16_t>(tile, row, column, uint16_t(bits >> 16));
  }
  long stride;
  std::vector<unsigned char> bytes;
};

// Bits of all kinds: any, small exponents, sums that cancel, the edges.
uint16_t bf16_of_kind(int kind) {
  const auto any = random_words();
  const uint16_t sign = any >> 16 & 0x8000, mantissa = any & 0x7f;
  switch (kind) {
    case 0: return uint16_t(any);
    case 1:
      return uint16_t(sign | (60 + (any >> 8) % 12) << 7 | mantissa);  // products near the smallest normal numbers
    case 2: return uint16_t(sign | (124 + (any >> 8) % 6) << 7 | mantissa);   // near 1
    case 3: return uint16_t(sign | (188 + (any >> 8) % 12) << 7 | mantissa);  // products that overflow
    default: return uint16_t(sign | mantissa);                                // subnormal
  }
}
float any_sum(int kind) {
  const uint32_t bits = uint32_t(bf16_of_kind(kind)) << 16 | (random_words() & 0xffff);
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Equal, or both NaN: instructions promise no payload.
bool same_floats(const unsigned char* x, const unsigned char* y, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    float a, b;
    memcpy(&a, x + 4 * i, 4), memcpy(&b, y + 4 * i, 4);
    if (memcmp(&a, &b, 4) != 0 && !(std::isnan(a) && std::isnan(b))) return false;
  }
  return true;
}

void random_products() {
  for (const long stride : {64L, 68L, 256L, 1024L}) {
    for (int round = 0; round < 60; ++round) {
      const auto which = Product(round % 5);
      Tiles given(stride);
      for (auto& byte : given.bytes) byte = uint8_t(random_words());
      if (which == Product::bf16) {
        const int kind = round / 5 % 6;
        for (int tile = 1; tile < 3; ++tile) {
          for (int i = 0; i < 512; ++i)
            given.put<uint16_t>(tile, i / 32, i % 32, bf16_of_kind(kind == 5 ? i % 5 : kind));
        }
        for (int i = 0; i < 256; ++i) given.put<float>(0, i / 16, i % 16, any_sum(kind == 5 ? i % 5 : kind));
      }
      Tiles found[2] = {given, given};
      for (int i = 0; i < 2; ++i) {
        Operands o = found[i].operands();
        kBoth[i]->configure();
        kBoth[i]->product(which, o);
        kBoth[i]->release();
      }
      bool same = true;
      for (int row = 0; row < 16; ++row) {
        const unsigned char *x = found[0].at(0) + row * stride, *y = found[1].at(0) + row * stride;
        same &= which == Product::bf16 ? same_floats(x, y, 16) : memcmp(x, y, 64) == 0;
        // Nothing but the rows of c is written.
        same &= memcmp(x + 64, given.at(0) + row * stride + 64, size_t(stride - 64)) == 0;
      }
      same &= memcmp(found[0].at(1), given.at(1), size_t(32 * stride)) == 0;
      CHECK(same);
    }
  }
}

void blocks() {
  std::vector<unsigned char> from(8192), to[2];
  for (size_t i = 0; i < from.size(); i += 2) {
    const uint16_t bits = bf16_of_kind(2);
    memcpy(from.data() + i, &bits, sizeof bits);
  }
  for (int i = 0; i < 2; ++i) {
    to[i].assign(4096, 0xff);
    kBoth[i]->configure();
    kBoth[i]->block(from.data(), to[i].data());
    kBoth[i]->release();
  }
  CHECK(same_floats(to[0].data(), to[1].data(), 1024));
  float last;
  memcpy(&last, to[0].data() + 4092, sizeof last);
  CHECK(last == 0);
}

// One element of a product of bf16: pairs of a and b as given, the others 0, and a sum before.
float one_of(const Words& words, float before, const std::vector<float>& a, const std::vector<float>& b) {
  Tiles tiles(64);
  for (int i = 0; i < int(a.size()); ++i) {
    tiles.put_bf16(1, 3, i, a[size_t(i)]);
    tiles.put_bf16(2, i / 2, 2 * 5 + i % 2, b[size_t(i)]);
  }
  tiles.put(0, 3, 5, before);
  Operands o = tiles.operands();
  words.configure();
  words.product(Product::bf16, o);
  words.release();
  return tiles.get<float>(0, 3, 5);
}
bool is(float x, float y) { return x == y && std::signbit(x) == std::signbit(y); }

void edges_of_bf16() {
  constexpr float inf = std::numeric_limits<float>::infinity(), least = std::numeric_limits<float>::min();
  const float nan = std::nanf(""), subnormal = least / 2, most = 0x1.fep127f;
  for (const Words* words : kBoth) {
    const auto one = [&](float before, const std::vector<float>& a, const std::vector<float>& b) {
      return one_of(*words, before, a, b);
    };
    // Subnormal elements and sums before count as 0, results become 0 of their sign.
    CHECK(is(one(0, {subnormal}, {0x1p100f}), 0));
    CHECK(is(one(subnormal, {}, {}), 0));
    CHECK(is(one(-subnormal, {1}, {-0.f}), 0));  // -0 + (e + o), of which o is +0
    CHECK(is(one(least, {0x1p-63f}, {-0x1p-64f}), least));
    CHECK(is(one(0, {-0x1p-64f}, {0x1p-63f}), 0));
    CHECK(is(one(-least, {0x1.8p-63f}, {0x1p-63f}), 0));  // what is left is half the least
    // The order: elements of even places in one chain, of odd places in another, then both, then the sum before.
    CHECK(one(0, {0x1p60f, 1, -0x1p60f, 1}, {1, 1, 1, 1}) == 2);
    CHECK(one(0, {1, 0, 0x1p60f, 0, -0x1p60f}, {1, 1, 1, 1, 1}) == 0);
    CHECK(one(0x1p60f, {1, -0x1p60f}, {1, 1}) == 0);
    CHECK(one(1, {0x1p60f, -0x1p60f}, {1, 1}) == 1);
    // A multiplication is rounded with the addition after it.
    CHECK(one(0, {1, 0, 0x1.02p0f}, {-1, 0, 0x1.02p0f}) == 0x1.02p0f * 0x1.02p0f - 1);
    // Ties round to even.
    CHECK(one(0, {0x1p24f, 0, 1}, {1, 0, 1}) == 0x1p24f);
    CHECK(one(0, {0x1p24f, 0, 1.5f}, {1, 0, 1}) == 0x1p24f + 2);
    CHECK(one(0, {0x1p24f, 0, 3}, {1, 0, 1}) == 0x1p24f + 4);
    CHECK(one(0, {most}, {2}) == inf);
    CHECK(one(0, {-most, 0, -most}, {1, 0, 1}) == -inf);
    CHECK(one(1, {inf}, {2}) == inf);
    CHECK(one(-inf, {1}, {1}) == -inf);
    CHECK(std::isnan(one(0, {inf}, {0})));
    CHECK(std::isnan(one(0, {inf, inf}, {1, -1})));
    CHECK(std::isnan(one(0, {inf}, {subnormal})));
    CHECK(std::isnan(one(-inf, {inf}, {1})));
    CHECK(std::isnan(one(1, {nan}, {0})));
    CHECK(std::isnan(one(nan, {}, {})));
  }
}

void edges_of_bytes() {
  for (const Words* words : kBoth) {
    for (int which = 1; which < 5; ++which) {
      const bool signed_a = which == 1 || which == 3, signed_b = which == 1 || which == 2;
      for (const int a : {0, 1, 127, 128, 255}) {
        for (const int b : {0, 1, 127, 128, 255}) {
          Tiles tiles(64);
          memset(tiles.at(1), a, 1024), memset(tiles.at(2), b, 1024);
          for (int i = 0; i < 256; ++i) tiles.put<uint32_t>(0, i / 16, i % 16, 0x7fffffff);
          Operands o = tiles.operands();
          words->configure();
          words->product(Product(which), o);
          words->release();
          const int x = signed_a ? int8_t(a) : a, y = signed_b ? int8_t(b) : b;
          CHECK(tiles.get<uint32_t>(0, 15, 15) == 0x7fffffffu + uint32_t(64 * x * y));
        }
      }
    }
  }
}

int signal_of(void (*f)()) {
  const pid_t child = fork();
  if (child == 0) {
    f();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

// Tiles are of one thread, gone when it releases them, and a word without them ends the program.
template <int I> void without_configuration() {
  static unsigned char memory[8192];
  const auto use = [] { kBoth[I]->block(memory, memory); };
  CHECK(signal_of(use) == SIGILL);
  CHECK(signal_of([] {
          kBoth[I]->configure();
          kBoth[I]->block(memory, memory);
        }) == 0);
  CHECK(signal_of([] {
          kBoth[I]->configure();
          kBoth[I]->release();
          kBoth[I]->block(memory, memory);
        }) == SIGILL);
}

}  // namespace
}  // namespace tilekiln::test

int main() {
  using namespace tilekiln;
  if (!test::TileTrap::install_if_needed()) {
    printf("no tiles here: %s\n", amx::refusal());
    return 77;
  }
  test::random_products();
  test::blocks();
  test::edges_of_bf16();
  test::edges_of_bytes();
  test::without_configuration<0>();
  test::without_configuration<1>();
  return check_result();
}
