// SPDX-License-Identifier: MIT
// The border between tiles_test.cpp and the two programs of tile words it compares.
#pragma once

namespace tilekiln::test {

enum class Product { bf16, ss, us, su, uu };
struct Operands {
  unsigned char *c, *a, *b;
  long stride;
};
struct Words {
  void (*configure)();
  void (*release)();
  void (*product)(Product, Operands&);
  void (*block)(const unsigned char* from, unsigned char* to);
};

}  // namespace tilekiln::test
