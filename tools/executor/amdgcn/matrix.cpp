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

float value_of(const Machine& machine, const u32* words, int e, Element element, bool is_b) {
  switch (element) {
    case Element::f16: return from_half(words[e >> 1] >> (16 * (e & 1)));
    case Element::bf16: return from_bfloat(words[e >> 1] >> (16 * (e & 1)) & 0xffff);
    case Element::f32: return as_float(words[e]);
    default: break;
  }
  const u8 byte = u8(words[e >> 2] >> (8 * (e & 3)));
  if (element == Element::i8) return float(i8(byte));
  const bool is_bf8 = is_b ? element == Element::fp8_bf8 || element == Element::bf8_bf8
                           : element == Element::bf8_fp8 || element == Element::bf8_bf8;
  return from_fp8(byte, Fp8((machine.architecture == 0x942 ? 2 : 0) + is_bf8));
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

struct Operands {
  float a[32 * 128], b[128 * 32];
  u64 rows_defined = ~0ull, columns_defined = ~0ull;
};

void read(const Machine& machine, Wave& wave, const Instruction& in, const Shape& s, Operands& o) {
  const bool is_16bit = s.element == Element::f16 || s.element == Element::bf16;
  const int per_word = s.element == Element::f32 ? 1 : is_16bit ? 2 : 4, registers = s.per_lane / per_word;
  const int a = vector_index(wave, in, 1), b = vector_index(wave, in, 2);
  for (int r = 0; r < registers; r++) {
    before_read_vgpr(wave, in, a + r);
    before_read_vgpr(wave, in, b + r);
  }
  for (int lane = 0; lane < wave.lanes; lane++) {
    u32 words_a[8], words_b[8];
    bool a_defined = true, b_defined = true;
    for (int r = 0; r < registers; r++) {
      words_a[r] = wave.vgpr[a + r][lane];
      words_b[r] = wave.vgpr[b + r][lane];
      a_defined &= lane_of(wave.vgpr_defined[a + r], lane);
      b_defined &= lane_of(wave.vgpr_defined[b + r], lane);
    }
    const int i = lane % s.m, group = lane / s.m;
    if (!a_defined) o.rows_defined &= ~(1ull << i);
    if (!b_defined) o.columns_defined &= ~(1ull << i);
    for (int e = 0; e < s.per_lane; e++) {
      int k = k_of(s, group, e, is_16bit);
      if (machine.options.permute_k) k = (k * 5 + 3) % s.k;
      const float from_a = value_of(machine, words_a, e, s.element, false);
      const float from_b = value_of(machine, words_b, e, s.element, true);
      float &to_a = o.a[i * s.k + k], &to_b = o.b[k * s.m + i];
      if (s.unit == Unit::wmma_rdna3 && group && (bits_of(to_a) != bits_of(from_a) || bits_of(to_b) != bits_of(from_b)))
        fault("LAYOUT", wave, in, "lanes 16-31 must hold what lanes 0-15 hold; lane %d element %d differs", lane, e);
      to_a = from_a, to_b = from_b;
    }
  }
}

/// How long after it issues an MFMA's result may not be touched; WMMA is interlocked.
int wait_states(const Machine& machine, const Shape& s) {
  if (s.unit != Unit::mfma) return 0;
  const bool slow = machine.architecture == 0x90a || s.element == Element::f32;
  int passes = (s.m == 32 ? 8 : 4) * (slow ? 2 : 1);
  if (s.element == Element::f32 && s.per_lane == 2) passes /= 2;  // xf32
  return passes + 3 + (machine.architecture == 0x950) + 1;
}

void multiply(Machine& machine, Wave& wave, const Instruction& in, const Shape s) {
  if (s.unit != Unit::mfma && wave.exec() != wave.all_lanes) fault("EXEC", wave, in, "WMMA needs all lanes");
  static thread_local Operands o;
  static thread_local float d[32 * 32];
  o.rows_defined = o.columns_defined = ~0ull;
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
  const auto each_result = [&](auto body) {
    for (int r = 0; r < registers; r++)
      for (int lane = 0; lane < wave.lanes; lane++) body(r, lane, row_of(s, lane / s.m, r), lane % s.m);
  };
  const auto addend = [&](int r, int lane) {
    return constant ? immediate_bits(in.operand[3], is_integer ? Type::u32 : Type::f32, 0) : wave.vgpr[from + r][lane];
  };
  for (int r = 0; r < registers; r++) c_defined[r] = constant ? ~0ull : wave.vgpr_defined[from + r];
  if (is_integer) {  // sums of at most 64 products of 7 bits are exact in float
    each_result([&](int, int, int i, int j) { d[i * s.m + j] = 0; });
  } else {
    each_result([&](int r, int lane, int i, int j) { d[i * s.m + j] = as_float(addend(r, lane)); });
  }
  for (int i = 0; i < s.m; i++)
    for (int k = 0; k < s.k; k++) {
      const float a = o.a[i * s.k + k];
      const float* b = o.b + k * s.m;
      for (int j = 0; j < s.m; j++) d[i * s.m + j] += a * b[j];
    }
  each_result([&](int r, int lane, int i, int j) {
    const float sum = d[i * s.m + j];
    wave.vgpr[to + r][lane] = is_integer ? addend(r, lane) + u32(i32(sum)) : bits_of(sum);
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
