// SPDX-License-Identifier: MIT
// Matrix products D = A B + C: MFMA (CDNA) and WMMA (RDNA 3 and 4).
//
// Layouts, for a block of M x M over K. A lane of group g = lane / M holds row i = lane % M of A and column i of B:
//   MFMA          elements k = g * per_lane + e
//   WMMA, RDNA 3  elements k = e; lanes 16-31 must hold what lanes 0-15 hold
//   WMMA, RDNA 4  16-bit: k = 8 (e / 4) + 4 g + e % 4; 8-bit: k = 8 g + e
// and element r of D's registers is row, column lane % M, with row =
//   MFMA 32x32: 8 (r / 4) + 4 g + r % 4; MFMA 16x16: 4 g + r; RDNA 3: 2 r + g; RDNA 4: 8 g + r
// These were compared with AMD's matrix calculator entry by entry but for gfx950's 32x32x16 and 16x16x32, which follow
// the same rule and are believed. What a kernel computes does not depend on the order of k (Options::permute_k).
#include <algorithm>

#include "operands.h"

namespace amdgcn {

namespace {

enum class Element { f16, bf16, f32, i8, fp8_fp8, fp8_bf8, bf8_fp8, bf8_bf8 };
enum class Unit { mfma, wmma_rdna3, wmma_rdna4 };

struct Shape {
  int m, k, per_lane;  // rows and columns, length of the sums, elements of A (and of B) a lane holds
  Element element;
  Unit unit;
};

bool is_16_bit(Element element) { return element == Element::f16 || element == Element::bf16; }

/// The fp8 format of the bytes of A, or of B.
Fp8 fp8_of(const Machine& machine, Element element, bool is_b) {
  const bool is_bf8 = is_b ? element == Element::fp8_bf8 || element == Element::bf8_bf8
                           : element == Element::bf8_fp8 || element == Element::bf8_bf8;
  return Fp8((machine.architecture == 0x942 ? 2 : 0) + is_bf8);
}

const float* fp8_values(Fp8 format) {
  struct Table {
    float value[4][256];
    Table() {
      for (int k = 0; k < 4; k++)
        for (int byte = 0; byte < 256; byte++) value[k][byte] = from_fp8(u8(byte), Fp8(k));
    }
  };
  static const Table table;
  return table.value[int(format)];
}

/// Element e of every lane, from the registers that begin at `words`.
void values_of(const Machine& machine, const u32 (*words)[64], int e, Element element, bool is_b, int lanes,
               float* values) {
  switch (element) {
    case Element::f16:
      for (int lane = 0; lane < lanes; lane++) values[lane] = from_half(words[e >> 1][lane] >> (16 * (e & 1)));
      return;
    case Element::bf16:
      for (int lane = 0; lane < lanes; lane++)
        values[lane] = from_bfloat(words[e >> 1][lane] >> (16 * (e & 1)) & 0xffff);
      return;
    case Element::f32:
      for (int lane = 0; lane < lanes; lane++) values[lane] = as_float(words[e][lane]);
      return;
    case Element::i8:
      for (int lane = 0; lane < lanes; lane++) values[lane] = float(i8(words[e >> 2][lane] >> (8 * (e & 3))));
      return;
    default: {
      const float* table = fp8_values(fp8_of(machine, element, is_b));
      for (int lane = 0; lane < lanes; lane++) values[lane] = table[words[e >> 2][lane] >> (8 * (e & 3)) & 0xff];
    }
  }
}

int k_of(const Shape& s, int group, int e, bool is_16bit) {
  switch (s.unit) {
    case Unit::mfma: return group * s.per_lane + e;
    case Unit::wmma_rdna3: return e;
    case Unit::wmma_rdna4: return is_16bit ? 8 * (e / 4) + 4 * group + e % 4 : group * s.per_lane + e;
  }
  return 0;
}

int row_of(const Shape& s, int group, int r) {
  switch (s.unit) {
    case Unit::mfma: return s.m == 32 ? 8 * (r / 4) + 4 * group + r % 4 : 4 * group + r;
    case Unit::wmma_rdna3: return 2 * r + group;
    case Unit::wmma_rdna4: return 8 * group + r;
  }
  return 0;
}

enum : int { MOST_ELEMENTS = 32 * 32 };  // of A, as of B

/// A and B, both by k: all rows of A's column k, all columns of B's row k.
struct Operands {
  float a[MOST_ELEMENTS], b[MOST_ELEMENTS];
  u64 rows_defined = ~0ull, columns_defined = ~0ull;
};

/// Rows (of A) or columns (of B) whose lanes hold undefined registers.
u64 undefined_lines(const Wave& wave, const Shape& s, int first, int registers) {
  u64 lanes = 0, lines = 0;
  for (int r = 0; r < registers; r++) lanes |= ~wave.vgpr_defined[first + r];
  if (wave.lanes == 32) lanes &= 0xffffffffull;
  for (int lane = 0; lanes && lane < wave.lanes; lane++)
    if (lane_of(lanes, lane)) lines |= 1ull << (lane % s.m);
  return lines;
}

void check_halves(const Wave& wave, const Instruction& in, int first, int registers) {
  for (int r = 0; r < registers; r++)
    for (int lane = 0; lane < 16; lane++)
      if (wave.vgpr[first + r][lane] != wave.vgpr[first + r][lane + 16])
        fault("LAYOUT", wave, in, "lanes 16-31 must hold what lanes 0-15 hold; lane %d of v%d differs", lane + 16,
              first + r);
}

void read(const Machine& machine, Wave& wave, const Instruction& in, const Shape& s, Operands& o) {
  const bool is_16bit = is_16_bit(s.element);
  const int per_word = s.element == Element::f32 ? 1 : is_16bit ? 2 : 4, registers = s.per_lane / per_word;
  const int a = vector_index(wave, in, 1), b = vector_index(wave, in, 2);
  for (int r = 0; r < registers; r++) {
    before_read_vgpr(wave, in, a + r);
    before_read_vgpr(wave, in, b + r);
  }
  o.rows_defined &= ~undefined_lines(wave, s, a, registers);
  o.columns_defined &= ~undefined_lines(wave, s, b, registers);
  const bool repeats = s.unit == Unit::wmma_rdna3;
  if (repeats) {
    check_halves(wave, in, a, registers);
    check_halves(wave, in, b, registers);
  }
  const int lanes = repeats ? 16 : wave.lanes;
  for (int e = 0; e < s.per_lane; e++) {
    float from_a[64], from_b[64];
    values_of(machine, &wave.vgpr[a], e, s.element, false, lanes, from_a);
    values_of(machine, &wave.vgpr[b], e, s.element, true, lanes, from_b);
    for (int group = 0; group < lanes / s.m; group++) {
      int k = k_of(s, group, e, is_16bit);
      if (machine.options.permute_k) k = (k * 5 + 3) % s.k;
      std::memcpy(o.a + k * s.m, from_a + group * s.m, size_t(s.m) * 4);
      std::memcpy(o.b + k * s.m, from_b + group * s.m, size_t(s.m) * 4);
    }
  }
}

/// D += A B. Sums go along k, one after the other.
template <int m> void sum_products(const Operands& o, int depth, float* d) {
  for (int i = 0; i < m; i++) {
    float row[m];
    std::memcpy(row, d + i * m, sizeof row);
    for (int k = 0; k < depth; k++) {
      const float a = o.a[k * m + i];
      const float* b = o.b + k * m;
      for (int j = 0; j < m; j++) row[j] += a * b[j];
    }
    std::memcpy(d + i * m, row, sizeof row);
  }
}

/// Cycles after an MFMA's issue in which its result may not be touched; WMMA is interlocked.
int wait_states(const Machine& machine, const Shape& s) {
  if (s.unit != Unit::mfma) return 0;
  const bool slow = machine.architecture == 0x90a || s.element == Element::f32;
  int passes = (s.m == 32 ? 8 : 4) * (slow ? 2 : 1);
  if (s.element == Element::f32 && s.per_lane == 2) passes /= 2;  // xf32
  return passes + 3 + (machine.architecture == 0x950) + 1;
}

void multiply(Machine& machine, Wave& wave, const Instruction& in, const Shape s) {
  if (s.unit != Unit::mfma && wave.exec() != wave.all_lanes) fault("EXEC", wave, in, "WMMA needs all lanes");
  Operands o;
  float d[32 * 32];
  read(machine, wave, in, s, o);

  const int to = vector_index(wave, in), registers = s.m * s.m / wave.lanes;
  const bool constant = in.operand[3].kind == Kind::immediate;
  const int from = in.operand[3].index;
  if (!constant)
    for (int r = 0; r < registers; r++) {
      if (from == to) wave.ready[to + r] = 0;  // accumulating in place is interlocked
      before_read_vgpr(wave, in, from + r);
    }
  u64 c_defined[16];
  const bool is_integer = s.element == Element::i8;
  /// body(register, first lane, its row of D): a group's lanes hold a row.
  const auto each_row = [&](auto body) {
    for (int r = 0; r < registers; r++)
      for (int group = 0; group < wave.lanes / s.m; group++) body(r, group * s.m, d + row_of(s, group, r) * s.m);
  };
  const u32 addend = constant ? immediate_bits(in.operand[3], is_integer ? Type::u32 : Type::f32, 0) : 0;
  for (int r = 0; r < registers; r++) c_defined[r] = constant ? ~0ull : wave.vgpr_defined[from + r];
  each_row([&](int r, int lane, float* row) {
    if (is_integer)  // sums of at most 64 products of 7 bits are exact in float
      std::fill_n(row, s.m, 0.f);
    else if (constant)
      std::fill_n(row, s.m, as_float(addend));
    else
      std::memcpy(row, &wave.vgpr[from + r][lane], size_t(s.m) * 4);
  });
  if (s.m == 32)
    sum_products<32>(o, s.k, d);
  else
    sum_products<16>(o, s.k, d);
  each_row([&](int r, int lane, const float* row) {
    u32* results = &wave.vgpr[to + r][lane];
    if (!is_integer) {
      std::memcpy(results, row, size_t(s.m) * 4);
      return;
    }
    for (int j = 0; j < s.m; j++) results[j] = (constant ? addend : wave.vgpr[from + r][lane + j]) + u32(i32(row[j]));
  });
  const int states = wait_states(machine, s);
  for (int r = 0; r < registers; r++) {
    before_write_vgpr(wave, in, to + r);
    if (states) wave.ready[to + r] = wave.wait_states + u32(states);
    u64 defined = c_defined[r];
    if (~o.rows_defined || ~o.columns_defined)
      for (int lane = 0; lane < wave.lanes; lane++)
        if (!lane_of(o.rows_defined, row_of(s, lane / s.m, r)) || !lane_of(o.columns_defined, lane % s.m))
          defined &= ~(1ull << lane);
    wave.vgpr_defined[to + r] = wave.lanes == 64 ? defined : defined | 0xffffffff00000000ull;
  }
}

void wmma(Machine& machine, Wave& wave, const Instruction& in, Element element) {
  const bool rdna4 = machine.is_gfx12();
  multiply(machine, wave, in, {16, 16, rdna4 ? 8 : 16, element, rdna4 ? Unit::wmma_rdna4 : Unit::wmma_rdna3});
}

}  // namespace

#define MFMA(names, m, k, per_lane, element)                                                                           \
  INSTRUCTION(names, { multiply(machine, wave, in, {m, k, per_lane, element, Unit::mfma}); })
MFMA("v_mfma_f32_32x32x8f16 v_mfma_f32_32x32x8_f16", 32, 8, 4, Element::f16)
MFMA("v_mfma_f32_16x16x16f16 v_mfma_f32_16x16x16_f16", 16, 16, 4, Element::f16)
MFMA("v_mfma_f32_32x32x8bf16_1k v_mfma_f32_32x32x8_bf16", 32, 8, 4, Element::bf16)
MFMA("v_mfma_f32_16x16x16bf16_1k v_mfma_f32_16x16x16_bf16", 16, 16, 4, Element::bf16)
MFMA("v_mfma_f32_32x32x16_f16", 32, 16, 8, Element::f16)
MFMA("v_mfma_f32_16x16x32_f16", 16, 32, 8, Element::f16)
MFMA("v_mfma_f32_32x32x16_bf16", 32, 16, 8, Element::bf16)
MFMA("v_mfma_f32_16x16x32_bf16", 16, 32, 8, Element::bf16)
MFMA("v_mfma_f32_32x32x2f32 v_mfma_f32_32x32x2_f32", 32, 2, 1, Element::f32)
MFMA("v_mfma_f32_16x16x4f32 v_mfma_f32_16x16x4_f32", 16, 4, 1, Element::f32)
MFMA("v_mfma_f32_16x16x8_xf32", 16, 8, 2, Element::f32)
MFMA("v_mfma_f32_32x32x4_xf32", 32, 4, 2, Element::f32)
MFMA("v_mfma_f32_32x32x16_fp8_fp8", 32, 16, 8, Element::fp8_fp8)
MFMA("v_mfma_f32_16x16x32_fp8_fp8", 16, 32, 8, Element::fp8_fp8)
MFMA("v_mfma_f32_32x32x16_bf8_bf8", 32, 16, 8, Element::bf8_bf8)
MFMA("v_mfma_f32_16x16x32_bf8_bf8", 16, 32, 8, Element::bf8_bf8)
MFMA("v_mfma_f32_32x32x16_fp8_bf8", 32, 16, 8, Element::fp8_bf8)
MFMA("v_mfma_f32_32x32x16_bf8_fp8", 32, 16, 8, Element::bf8_fp8)
MFMA("v_mfma_i32_32x32x8i8 v_mfma_i32_32x32x8_i8", 32, 8, 4, Element::i8)
MFMA("v_mfma_i32_16x16x16i8 v_mfma_i32_16x16x16_i8", 16, 16, 4, Element::i8)
MFMA("v_mfma_i32_32x32x16_i8", 32, 16, 8, Element::i8)
MFMA("v_mfma_i32_16x16x32_i8", 16, 32, 8, Element::i8)
MFMA("v_mfma_i32_32x32x32_i8", 32, 32, 16, Element::i8)
MFMA("v_mfma_i32_16x16x64_i8", 16, 64, 16, Element::i8)
INSTRUCTION("v_wmma_f32_16x16x16_f16", { wmma(machine, wave, in, Element::f16); })
INSTRUCTION("v_wmma_f32_16x16x16_bf16", { wmma(machine, wave, in, Element::bf16); })
INSTRUCTION("v_wmma_f32_16x16x16_fp8_fp8", { wmma(machine, wave, in, Element::fp8_fp8); })
INSTRUCTION("v_wmma_i32_16x16x16_iu8", {
  if (in.neg_lo != 3) fault("DECODE", wave, in, "unsigned 8-bit integers");
  wmma(machine, wave, in, Element::i8);
})

}  // namespace amdgcn
