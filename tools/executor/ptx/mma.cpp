// SPDX-License-Identifier: MIT
// PTX ISA 9.0, "Warp Level Matrix Multiply-Accumulate Instructions": mma.sync m16n8k16 (and m16n8k32 of fp8), ldmatrix, stmatrix.
#include <algorithm>
#include <cstring>

#include "lanes.h"

namespace ptx {

namespace {

float element(u32 word, int i, int type) {
  switch (type) {
    case FP16: return from_half(word >> (16 * i) & 0xffff);
    case BF16: return from_bfloat(word >> (16 * i) & 0xffff);
    case E4M3: return from_fp8(u8(word >> (8 * i)), Fp8::e4m3_ocp);
    default: return from_fp8(u8(word >> (8 * i)), Fp8::e5m2_ocp);
  }
}
const Operand& item(const Instruction& in, int i, int k) { return in.items[size_t(in.operand[i].first + k)]; }

/// d (16, 8) = a (16, k) b (k, 8) + c.
Step multiply(Machine&, Warp& warp, const Instruction& in, u32) {
  const int type = in.a, per = type >= E4M3 ? 4 : 2, depth = 8 * per;
  float a[16][32], b[32][8];
  bool known_a[16], known_b[8];
  std::fill_n(known_a, 16, true);
  std::fill_n(known_b, 8, true);
  for (int word = 0; word < 4; word++)
    for (int lane = 0; lane < 32; lane++) {
      const Operand& from = item(in, 1, word);
      const int row = lane / 4 + 8 * (word & 1), k = 4 * per * (word >> 1) + per * (lane % 4);
      for (int i = 0; i < per; i++) a[row][k + i] = element(source<u32>(warp, from)[lane], i, type);
      known_a[row] &= known(warp, from) >> lane & 1;
    }
  for (int word = 0; word < 2; word++)
    for (int lane = 0; lane < 32; lane++) {
      const Operand& from = item(in, 2, word);
      const int column = lane / 4, k = 4 * per * word + per * (lane % 4);
      for (int i = 0; i < per; i++) b[k + i][column] = element(source<u32>(warp, from)[lane], i, type);
      known_b[column] &= known(warp, from) >> lane & 1;
    }
  float made[4][32];
  u32 are[4] = {};
  for (int word = 0; word < 4; word++)
    for (int lane = 0; lane < 32; lane++) {
      const int row = lane / 4 + 8 * (word >> 1), column = 2 * (lane % 4) + (word & 1);
      float sum = source<float>(warp, item(in, 3, word))[lane];
      for (int k = 0; k < depth; k++) sum += a[row][k] * b[k][column];
      made[word][lane] = sum;
      are[word] |= u32(known_a[row] && known_b[column] && (known(warp, item(in, 3, word)) >> lane & 1)) << lane;
    }
  for (int word = 0; word < 4; word++) {
    std::memcpy(target<float>(warp, item(in, 0, word)), made[word], sizeof made[word]);
    mark(warp, item(in, 0, word), ~0u, are[word]);
  }
  return Step::next;
}

/// Row i of matrix m lies where lane 8 m + i says; lane l holds elements 2 (l % 4) and its neighbour of row l / 4.
template <bool kLoads> Step matrices(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const int where = kLoads ? 1 : 0, count = in.a;
  const bool transposed = in.b;
  const Operand& operand = in.operand[where];
  const Operand& base = in.items[size_t(operand.first)];
  must_know(warp, in, base, lanes & (count == 4 ? ~0u : (1u << (8 * count)) - 1), "the address");
  u32 rows[32];
  for (int k = 0; k < 8 * count; k++) {
    rows[k] = source<u32>(warp, base)[k] + u32(operand.immediate);
    check_shared(warp, in, rows[k], 16);
    if (kLoads)
      note_read(warp, in, rows[k], 16, ALL_LANES);
    else
      note_write(warp, in, rows[k], 16, ALL_LANES);
  }
  Block& block = *warp.block;
  for (int m = 0; m < count; m++) {
    const Operand& one = item(in, 1 - where, m);
    u32 are = 0, held[32];
    for (int lane = 0; lane < 32; lane++) {
      held[lane] = kLoads ? 0 : source<u32>(warp, one)[lane];
      bool all = true;
      for (int i = 0; i < 2; i++) {
        int row = lane / 4, column = 2 * (lane % 4) + i;
        if (transposed) std::swap(row, column);
        const u32 at = rows[8 * m + row] + 2 * u32(column);
        if (kLoads) {
          u16 bits;
          std::memcpy(&bits, &block.shared[at], 2);
          held[lane] |= u32(bits) << (16 * i);
          all &= block.shared_defined[at] && block.shared_defined[at + 1];
        } else {
          const u16 bits = u16(held[lane] >> (16 * i));
          std::memcpy(&block.shared[at], &bits, 2);
          std::memset(&block.shared_defined[at], int(known(warp, one) >> lane & 1), 2);
        }
      }
      are |= u32(all) << lane;
    }
    if (kLoads) {
      std::memcpy(target<u32>(warp, one), held, sizeof held);
      mark(warp, one, ~0u, are);
    }
  }
  return Step::next;
}

}  // namespace

OPCODE("mma", {
  for (const char* word : {"sync", "aligned"})
    if (!d.take(word)) d.refuse(std::string("it must be .") + word);
  const int shape = d.one_of({"m16n8k16", "m16n8k32"});
  for (const char* word : {"row", "col", "f32"})
    if (!d.take(word)) d.refuse(std::string("it must be .") + word);
  d.in.a = d.one_of({"f16", "bf16", "e4m3", "e5m2"});
  if (d.one_of({"f16", "bf16", "e4m3", "e5m2"}) != d.in.a || (d.in.a >= E4M3) != (shape == 1))
    d.refuse("the types are unknown here");
  if (d.next() != "f32") d.refuse("sums must be .f32");
  d.end(4, multiply);
  d.list(0, 4, 4, true), d.list(1, 4, 4), d.list(2, 2, 4), d.list(3, 4, 4, true);
  d.in.converges = true;
});
OPCODE("ldmatrix stmatrix", {
  const bool loads = d.in.opcode.compare(0, 2, "ld") == 0;
  for (const char* word : {"sync", "aligned", "m8n8"})
    if (!d.take(word)) d.refuse(std::string("it must be .") + word);
  d.in.a = 1 << d.one_of({"x1", "x2", "x4"});
  d.in.b = d.take("trans");
  if ((!d.take("shared") && !d.take("shared::cta")) || !d.take("b16")) d.refuse("it must be .shared.b16");
  d.end(2, loads ? matrices<true> : matrices<false>);
  d.address(loads);
  d.list(!loads, d.in.a, 4);
  d.in.converges = true;
});

}  // namespace ptx
