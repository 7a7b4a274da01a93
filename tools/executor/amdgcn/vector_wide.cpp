// SPDX-License-Identifier: MIT
// Vector instructions of 64 bits, with carries, compares, packed and mixed arithmetic, and fp8 conversions.
#include <utility>

#include "operands.h"

namespace amdgcn {

namespace {

void write_pair(Wave& wave, const Instruction& in, const Lanes& low, const Lanes& high, u64 defined) {
  const int to = vector_index(wave, in);
  write_vector(wave, in, to, low.x, defined);
  write_vector(wave, in, to + 1, high.x, defined);
}

/// A 64-bit source, or a 32-bit one whose high half is 0.
struct Wide {
  Lanes room[2];
  const u32* low = nullptr;
  const u32* high = nullptr;
  u64 at(int lane) const { return low[lane] | u64(high[lane]) << 32; }
};

void read_wide(Wave& wave, const Instruction& in, const Operand& o, Wide& wide, u64& defined) {
  const bool single = (o.kind == Kind::vgpr || o.kind == Kind::sgpr) && o.count == 1;
  wide.low = read_vector(wave, in, o, 0, Type::b64, wide.room[0], defined);
  if (single) {
    each_lane([&](int lane) { wide.room[1].x[lane] = 0; });
    wide.high = wide.room[1].x;
  } else {
    wide.high = read_vector(wave, in, o, 1, Type::b64, wide.room[1], defined);
  }
}

template <class Body> void wide(Wave& wave, const Instruction& in, Body body) {
  u64 defined = ~0ull;
  Wide source[3];
  const int count = in.operands - 1;
  for (int k = 0; k < count; k++) read_wide(wave, in, in.operand[k + 1], source[k], defined);
  Lanes low, high;
  each_lane([&](int lane) {
    const u64 r = body(source[0].at(lane), source[1].at(lane), count > 2 ? source[2].at(lane) : 0);
    low.x[lane] = u32(r), high.x[lane] = u32(r >> 32);
  });
  write_pair(wave, in, low, high, defined);
}

/// result, carry-out mask, a, b [, carry-in mask].
enum class Sum { add, subtract, subtract_reversed };
void with_carry(Wave& wave, const Instruction& in, Sum kind, bool takes_carry) {
  u64 defined = ~0ull;
  Lanes room_a, room_b, r;
  const u32* a = read_vector(wave, in, in.operand[2], 0, Type::u32, room_a, defined);
  const u32* b = read_vector(wave, in, in.operand[3], 0, Type::u32, room_b, defined);
  u64 carry_in = 0, carry_out = 0, carry_defined = ~0ull;
  if (takes_carry) carry_in = read_mask(wave, in, in.operand[4], carry_defined);
  defined &= carry_defined;
  each_lane([&](int lane) {
    u64 x = a[lane], y = b[lane];
    if (kind == Sum::subtract_reversed) std::swap(x, y);
    const u64 carry = lane_of(carry_in, lane), sum = kind == Sum::add ? x + y + carry : x - y - carry;
    r.x[lane] = u32(sum);
    if (sum >> 32) carry_out |= 1ull << lane;
  });
  const u64 exec = wave.exec();
  write_vector(wave, in, vector_index(wave, in), r.x, defined);
  write_mask(wave, in, in.operand[1], carry_out & exec, defined | ~exec);
}

/// d (64 bits) = a * b + c (64 bits), and a mask. The low half of d needs no more than that of c, which the compiler makes
/// use of where it wants 32 bits.
template <class Body> void multiply_add(Wave& wave, const Instruction& in, Body body) {
  u64 defined = ~0ull, carry = 0;
  Lanes room_a, room_b, room_c, low, high;
  Wide c;
  const u32* a = read_vector(wave, in, in.operand[2], 0, Type::u32, room_a, defined);
  const u32* b = read_vector(wave, in, in.operand[3], 0, Type::u32, room_b, defined);
  u64 low_defined = defined;
  read_vector(wave, in, in.operand[4], 0, Type::b64, room_c, low_defined);
  read_wide(wave, in, in.operand[4], c, defined);
  each_lane([&](int lane) {
    const unsigned __int128 r = body(a[lane], b[lane], c.at(lane));
    low.x[lane] = u32(r), high.x[lane] = u32(r >> 32);
    if (r >> 64) carry |= 1ull << lane;
  });
  const u64 exec = wave.exec();
  const int to = vector_index(wave, in);
  write_vector(wave, in, to, low.x, low_defined);
  write_vector(wave, in, to + 1, high.x, defined);
  write_mask(wave, in, in.operand[1], carry & exec, defined | ~exec);
}

template <class Test> void compare(Wave& wave, const Instruction& in, Type type, Test test) {
  const Operand &left = in.operand[in.operands - 2], &right = in.operand[in.operands - 1];
  const bool plain = type != Type::b64 && !left.negate && !left.absolute && !right.negate && !right.absolute;
  if (in.dpp >= 0 || (in.sdwa && !plain)) fault("DECODE", wave, in, "a compare with DPP, or SDWA and modifiers");
  Sources s;
  read_sources(wave, in, s, 2, type, in.operands - 2);
  u64 defined = s.defined, mask = 0;
  Lanes room[2];
  const u32 *a = s.value[0], *b = s.value[1], *a1 = a, *b1 = b;
  if (type == Type::b64) {
    a1 = read_vector(wave, in, left, 1, type, room[0], defined);
    b1 = read_vector(wave, in, right, 1, type, room[1], defined);
  }
  each_lane([&](int lane) { mask |= u64(test(a[lane] | u64(a1[lane]) << 32, b[lane] | u64(b1[lane]) << 32)) << lane; });
  const u64 exec = wave.exec();
  mask &= exec;
  defined |= ~exec;
  if (!in.is_cmpx) return write_mask(wave, in, in.operand[0], mask, defined);
  if (~defined) fault("POISON", wave, in, "v_cmpx on undefined lanes %016llx", (unsigned long long)~defined);
  wave.set_exec(mask);
  if (!(in.operands == 3)) return;
  write_mask(wave, in, in.operand[0], mask, defined);  // gfx9 writes its destination too
}

/// Bits of v_cmp_class_f32: signalling and quiet NaN, then -inf ... +inf.
int float_class(u32 a) {
  const u32 exponent = a >> 23 & 255, fraction = a & 0x7fffff;
  const bool negative = a >> 31;
  if (exponent == 255) return fraction ? fraction >> 22 : negative ? 2 : 9;
  if (exponent == 0) return fraction ? (negative ? 4 : 7) : negative ? 5 : 6;
  return negative ? 3 : 8;
}

/// Two floats, each half of a source chosen by op_sel and op_sel_hi.
template <class Body> void packed_float(Wave& wave, const Instruction& in, int count, Body body) {
  u64 defined = ~0ull;
  Lanes room[6], r[2];
  const u32* source[6] = {};
  for (int k = 0; k < count; k++) {
    Operand o = in.operand[k + 1];
    o.negate = o.absolute = false;
    for (int high = 0; high < 2; high++) {
      const bool one_word = o.kind != Kind::vgpr && o.count == 1;
      Lanes& own = room[2 * k + high];
      const u32* values = read_vector(wave, in, o, one_word ? 0 : in.selects(k, high), Type::u32, own, defined);
      if ((high ? in.neg_hi : in.neg_lo) >> k & 1) {
        each_lane([&](int lane) { own.x[lane] = values[lane] ^ 0x80000000; });
        values = own.x;
      }
      source[2 * k + high] = values;
    }
  }
  for (int high = 0; high < 2; high++)
    each_lane([&](int lane) {
      const auto at = [&](int k) { return source[2 * k + high] ? as_float(source[2 * k + high][lane]) : 0.f; };
      r[high].x[lane] = bits_of(body(at(0), at(1), at(2)));
    });
  write_pair(wave, in, r[0], r[1], defined);
}

/// Two 16-bit values; `is_half`: inline constants are halves, which only the low word of a constant has.
template <class Body> void packed_half(Wave& wave, const Instruction& in, int count, bool is_half, Body body) {
  u64 defined = ~0ull;
  Lanes room[3], r;
  const u32* source[3] = {};
  for (int k = 0; k < count; k++)
    source[k] = read_vector(wave, in, in.operand[k + 1], 0, is_half ? Type::f16 : Type::u32, room[k], defined);
  each_lane([&](int lane) {
    u32 both = 0;
    for (int high = 0; high < 2; high++) {
      u32 value[3] = {0, 0, 0};
      for (int k = 0; k < count; k++) {
        const bool upper = in.selects(k, high);
        const bool constant = in.operand[k + 1].kind == Kind::immediate && in.operand[k + 1].is_float;
        value[k] = upper ? (constant ? 0 : source[k][lane] >> 16) : source[k][lane] & 0xffff;
        if ((high ? in.neg_hi : in.neg_lo) >> k & 1) value[k] ^= 0x8000;
      }
      both |= (body(value[0], value[1], value[2]) & 0xffff) << (16 * high);
    }
    r.x[lane] = both;
  });
  write_vector(wave, in, vector_index(wave, in), r.x, defined);
}

/// v_fma_mix: each source a float, or the half that op_sel names where op_sel_hi is set.
enum class Mix { whole, low, high };
void mixed(Wave& wave, const Instruction& in, Mix to_half_of) {
  u64 defined = ~0ull;
  Lanes room[3], r;
  for (int k = 0; k < 3; k++) {
    const bool is_half = in.has_op_sel_hi && (in.op_sel_hi >> k & 1), upper = in.selects(k, false);
    Operand o = in.operand[k + 1];
    o.negate = o.absolute = false;
    const Type type = is_half && o.kind == Kind::immediate ? Type::f16 : Type::f32;
    const u32* values = read_vector(wave, in, o, 0, type, room[k], defined);
    each_lane([&](int lane) {
      float value = is_half ? from_half(upper ? values[lane] >> 16 : values[lane]) : as_float(values[lane]);
      if (in.operand[k + 1].absolute) value = std::fabs(value);
      if (in.operand[k + 1].negate) value = -value;
      room[k].x[lane] = bits_of(value);
    });
  }
  const int to = vector_index(wave, in);
  each_lane([&](int lane) {
    float value = std::fma(as_float(room[0].x[lane]), as_float(room[1].x[lane]), as_float(room[2].x[lane]));
    if (in.clamp) value = value > 0 ? (value < 1 ? value : 1.f) : 0.f;
    const u32 old = wave.vgpr[to][lane];
    r.x[lane] = to_half_of == Mix::whole ? bits_of(value)
                : to_half_of == Mix::low ? (old & 0xffff0000) | to_half(value)
                                         : (old & 0xffff) | to_half(value) << 16;
  });
  write_vector(wave, in, to, r.x, defined);
}

/// gfx942 has the FNUZ formats; gfx950 and gfx1201 OCP's.
Fp8 fp8_of(const Machine& machine, bool e5m2) { return Fp8((machine.architecture == 0x942 ? 2 : 0) + e5m2); }

void convert_to_fp8(const Machine& machine, Wave& wave, const Instruction& in, bool e5m2) {
  u64 defined = ~0ull;
  Lanes room_a, room_b, r;
  const u32* a = read_vector(wave, in, in.operand[1], 0, Type::f32, room_a, defined);
  const u32* b = read_vector(wave, in, in.operand[2], 0, Type::f32, room_b, defined);
  const Fp8 format = fp8_of(machine, e5m2);
  const bool upper = in.has_op_sel && (in.op_sel & 12);  // of the result: printed third or fourth
  const int to = vector_index(wave, in);
  each_lane([&](int lane) {
    const u32 both = to_fp8(as_float(a[lane]), format) | u32(to_fp8(as_float(b[lane]), format)) << 8;
    const u32 old = wave.vgpr[to][lane];
    r.x[lane] = upper ? (old & 0xffff) | both << 16 : (old & 0xffff0000) | both;
  });
  write_vector(wave, in, to, r.x, defined);
}

/// One byte as a float, or two neighbours of a word: the byte or half by SDWA (gfx9), byte_sel or op_sel (gfx12).
void convert_from_fp8(const Machine& machine, Wave& wave, const Instruction& in, bool e5m2, bool two) {
  u64 defined = ~0ull;
  Lanes room, r[2];
  const u32* a = read_vector(wave, in, in.operand[1], 0, Type::u32, room, defined);
  const int from = in.sdwa_from[0], upper = in.selects(0, false);
  const int shift = from < 4 ? 8 * from : from < SDWA_DWORD ? 16 * (from - 4) : 16 * upper;
  if ((two ? from < 4 : upper) || in.dpp >= 0) fault("DECODE", wave, in, "a selection that this conversion has not");
  const Fp8 format = fp8_of(machine, e5m2);
  each_lane([&](int lane) {
    for (int k = 0; k <= two; k++) r[k].x[lane] = bits_of(from_fp8(u8(a[lane] >> (shift + 8 * k)), format));
  });
  if (two) return write_pair(wave, in, r[0], r[1], defined);
  write_vector(wave, in, vector_index(wave, in), r[0].x, defined);
}

}  // namespace

INSTRUCTION("v_mov_b64", {
  u64 defined = ~0ull;
  Wide a;
  read_wide(wave, in, in.operand[1], a, defined);
  Lanes low, high;
  each_lane([&](int lane) { low.x[lane] = a.low[lane], high.x[lane] = a.high[lane]; });
  write_pair(wave, in, low, high, defined);
})
INSTRUCTION("v_pk_mov_b32", {
  u64 defined = ~0ull;
  Lanes room[2], r[2];
  for (int k = 0; k < 2; k++) {
    const Operand& o = in.operand[k + 1];
    const int part = o.kind != Kind::vgpr && o.count == 1 ? 0 : in.selects(k, false);
    const u32* values = read_vector(wave, in, o, part, Type::u32, room[k], defined);
    std::memcpy(r[k].x, values, sizeof r[k].x);
  }
  write_pair(wave, in, r[0], r[1], defined);
})
INSTRUCTION("v_lshlrev_b64", { wide(wave, in, [](u64 a, u64 b, u64) { return b << (a & 63); }); })
INSTRUCTION("v_lshrrev_b64", { wide(wave, in, [](u64 a, u64 b, u64) { return b >> (a & 63); }); })
INSTRUCTION("v_ashrrev_i64", { wide(wave, in, [](u64 a, u64 b, u64) { return u64(i64(b) >> (a & 63)); }); })
INSTRUCTION("v_lshl_add_u64", { wide(wave, in, [](u64 a, u64 b, u64 c) { return (a << (b & 7)) + c; }); })
INSTRUCTION("v_mad_u64_u32 v_mad_co_u64_u32",
            { multiply_add(wave, in, [](u32 a, u32 b, u64 c) { return (unsigned __int128)(a)*b + c; }); })
INSTRUCTION("v_mad_i64_i32 v_mad_co_i64_i32", {
  multiply_add(wave, in, [](u32 a, u32 b, u64 c) { return (unsigned __int128)(u64(i64(i32(a)) * i32(b)) + c); });
})

INSTRUCTION("v_add_co_u32", { with_carry(wave, in, Sum::add, false); })
INSTRUCTION("v_addc_co_u32 v_add_co_ci_u32", { with_carry(wave, in, Sum::add, true); })
INSTRUCTION("v_sub_co_u32", { with_carry(wave, in, Sum::subtract, false); })
INSTRUCTION("v_subb_co_u32 v_sub_co_ci_u32", { with_carry(wave, in, Sum::subtract, true); })
INSTRUCTION("v_subbrev_co_u32 v_subrev_co_ci_u32", { with_carry(wave, in, Sum::subtract_reversed, true); })
INSTRUCTION("v_subrev_co_u32", { with_carry(wave, in, Sum::subtract_reversed, false); })

#define COMPARE_INT(suffix, kind, type, cast, op)                                                                      \
  INSTRUCTION("v_cmp_" suffix "_" kind " v_cmpx_" suffix "_" kind, {                                                   \
    compare(wave, in, type, [](u64 a, u64 b) { return cast(a) op cast(b); });                                          \
  })
#define COMPARES(suffix, op)                                                                                           \
  COMPARE_INT(suffix, "i32", Type::u32, i32, op)                                                                       \
  COMPARE_INT(suffix, "u32", Type::u32, u32, op)                                                                       \
  COMPARE_INT(suffix, "i64", Type::b64, i64, op)                                                                       \
  COMPARE_INT(suffix, "u64", Type::b64, u64, op)                                                                       \
  COMPARE_INT(suffix, "i16", Type::u32, i16, op)                                                                       \
  COMPARE_INT(suffix, "u16", Type::u32, u16, op)
COMPARES("lt", <)
COMPARES("le", <=)
COMPARES("gt", >)
COMPARES("ge", >=)
COMPARES("eq", ==)
COMPARES("ne", !=)
#define COMPARE_FLOAT(suffix, expression)                                                                              \
  INSTRUCTION("v_cmp_" suffix "_f32 v_cmpx_" suffix "_f32", {                                                          \
    compare(wave, in, Type::f32, [](u64 left, u64 right) {                                                             \
      const float a = as_float(u32(left)), b = as_float(u32(right));                                                   \
      return bool(expression);                                                                                         \
    });                                                                                                                \
  })                                                                                                                   \
  INSTRUCTION("v_cmp_" suffix "_f16 v_cmpx_" suffix "_f16", {                                                          \
    compare(wave, in, Type::f16, [](u64 left, u64 right) {                                                             \
      const float a = from_half(u32(left)), b = from_half(u32(right));                                                 \
      return bool(expression);                                                                                         \
    });                                                                                                                \
  })
COMPARE_FLOAT("lt", a < b)
COMPARE_FLOAT("le", a <= b)
COMPARE_FLOAT("gt", a > b)
COMPARE_FLOAT("ge", a >= b)
COMPARE_FLOAT("eq", a == b)
COMPARE_FLOAT("lg", a<b || a> b)
COMPARE_FLOAT("neq", !(a == b))
COMPARE_FLOAT("nlt", !(a < b))
COMPARE_FLOAT("nle", !(a <= b))
COMPARE_FLOAT("ngt", !(a > b))
COMPARE_FLOAT("nge", !(a >= b))
COMPARE_FLOAT("nlg", !(a < b || a > b))
COMPARE_FLOAT("u", a != a || b != b)
COMPARE_FLOAT("o", a == a && b == b)
INSTRUCTION("v_cmp_class_f32", {
  compare(wave, in, Type::f32, [](u64 a, u64 classes) { return bool(classes >> float_class(u32(a)) & 1); });
})

INSTRUCTION("v_pk_mul_f32", { packed_float(wave, in, 2, [](float a, float b, float) { return a * b; }); })
INSTRUCTION("v_pk_add_f32", { packed_float(wave, in, 2, [](float a, float b, float) { return a + b; }); })
INSTRUCTION("v_pk_fma_f32", { packed_float(wave, in, 3, [](float a, float b, float c) { return std::fma(a, b, c); }); })
#define PACKED_HALF(names, count, expression)                                                                          \
  INSTRUCTION(names, {                                                                                                 \
    packed_half(wave, in, count, true, [](u32 p, u32 q, u32 r) {                                                       \
      const float a = from_half(p), b = from_half(q), c = from_half(r);                                                \
      (void)c;                                                                                                         \
      return to_half(float(expression));                                                                               \
    });                                                                                                                \
  })
PACKED_HALF("v_pk_add_f16", 2, a + b)
PACKED_HALF("v_pk_mul_f16", 2, a* b)
PACKED_HALF("v_pk_fma_f16", 3, double(a) * b + c)
PACKED_HALF("v_pk_max_f16 v_pk_max_num_f16", 2, max_number(a, b))
PACKED_HALF("v_pk_min_f16 v_pk_min_num_f16", 2, min_number(a, b))
INSTRUCTION("v_pk_lshlrev_b16", { packed_half(wave, in, 2, false, [](u32 a, u32 b, u32) { return b << (a & 15); }); })
INSTRUCTION("v_pk_lshrrev_b16", { packed_half(wave, in, 2, false, [](u32 a, u32 b, u32) { return b >> (a & 15); }); })
INSTRUCTION("v_pk_add_u16", { packed_half(wave, in, 2, false, [](u32 a, u32 b, u32) { return a + b; }); })

INSTRUCTION("v_fma_mix_f32", { mixed(wave, in, Mix::whole); })
INSTRUCTION("v_fma_mixlo_f16", { mixed(wave, in, Mix::low); })
INSTRUCTION("v_fma_mixhi_f16", { mixed(wave, in, Mix::high); })
INSTRUCTION("v_cvt_pk_fp8_f32", { convert_to_fp8(machine, wave, in, false); })
INSTRUCTION("v_cvt_pk_bf8_f32", { convert_to_fp8(machine, wave, in, true); })
INSTRUCTION("v_cvt_f32_fp8", { convert_from_fp8(machine, wave, in, false, false); })
INSTRUCTION("v_cvt_f32_bf8", { convert_from_fp8(machine, wave, in, true, false); })
INSTRUCTION("v_cvt_pk_f32_fp8", { convert_from_fp8(machine, wave, in, false, true); })
INSTRUCTION("v_cvt_pk_f32_bf8", { convert_from_fp8(machine, wave, in, true, true); })

}  // namespace amdgcn
