// SPDX-License-Identifier: MIT
// Scalar arithmetic. A result is defined where every source bit is, but for and, or: a defined 0 or 1 decides those.
#include <cstdlib>

#include "operands.h"

namespace amdgcn {

namespace {

u32 all_or_nothing(u32 defined) { return defined == ~0u ? ~0u : 0; }

struct Two { u32 a, b, defined = ~0u; };

Two two(Wave& wave, const Instruction& in, int first) {
  Two t;
  t.a = read_scalar(wave, in, in.operand[first], 0, t.defined);
  t.b = read_scalar(wave, in, in.operand[first + 1], 0, t.defined);
  return t;
}

/// scc of what a handler has just computed.
void set_scc(Wave& wave, bool value, bool defined) {
  wave.scc = value;
  wave.scc_defined = defined;
}

bool selects(const Wave& wave, const Instruction& in) {
  if (!wave.scc_defined) fault("POISON", wave, in, "selection by an undefined scc");
  return wave.scc;
}

i32 signed_of(u32 value) { return i32(value); }
i32 immediate16(const Instruction& in) { return i16(in.operand[1].bits); }

u32 field(u32 a, u32 b, bool is_signed) {
  const u32 count = b >> 16 & 127, at = b & 31;
  if (!count) return 0;
  if (count >= 32) return is_signed ? u32(i32(a) >> at) : a >> at;
  const u32 value = a >> at & ((1u << count) - 1);
  return is_signed ? u32(i32(value << (32 - count)) >> (32 - count)) : value;
}

}  // namespace

// One source; scc unless `NONE`.
#define ONE(names, expression)                                                                                         \
  INSTRUCTION(names, {                                                                                                 \
    u32 defined = ~0u;                                                                                                 \
    const u32 a = read_scalar(wave, in, in.operand[1], 0, defined);                                                    \
    write_scalar(wave, in, in.operand[0], 0, (expression), all_or_nothing(defined));                                   \
  })
#define ONE_SCC(names, expression)                                                                                     \
  INSTRUCTION(names, {                                                                                                 \
    u32 defined = ~0u;                                                                                                 \
    const u32 a = read_scalar(wave, in, in.operand[1], 0, defined), r = (expression);                                  \
    set_scc(wave, r != 0, defined == ~0u);                                                                             \
    write_scalar(wave, in, in.operand[0], 0, r, all_or_nothing(defined));                                              \
  })
#define TWO(names, expression)                                                                                         \
  INSTRUCTION(names, {                                                                                                 \
    const Two t = two(wave, in, 1);                                                                                    \
    const u32 a = t.a, b = t.b;                                                                                        \
    write_scalar(wave, in, in.operand[0], 0, (expression), all_or_nothing(t.defined));                                 \
  })
#define TWO_SCC(names, expression, condition)                                                                          \
  INSTRUCTION(names, {                                                                                                 \
    const Two t = two(wave, in, 1);                                                                                    \
    const u32 a = t.a, b = t.b, r = (expression);                                                                      \
    set_scc(wave, (condition), t.defined == ~0u);                                                                      \
    write_scalar(wave, in, in.operand[0], 0, r, all_or_nothing(t.defined));                                            \
  })
#define CARRY(names, expression, condition)                                                                            \
  INSTRUCTION(names, {                                                                                                 \
    Two t = two(wave, in, 1);                                                                                          \
    if (!wave.scc_defined) t.defined = 0;                                                                              \
    const u32 a = t.a, b = t.b, carry = wave.scc, r = (expression);                                                    \
    set_scc(wave, (condition), t.defined == ~0u);                                                                      \
    write_scalar(wave, in, in.operand[0], 0, r, all_or_nothing(t.defined));                                            \
  })

INSTRUCTION("s_mov_b32", {
  u32 defined = ~0u;
  const u32 a = read_scalar(wave, in, in.operand[1], 0, defined);
  write_scalar(wave, in, in.operand[0], 0, a, defined);
})
INSTRUCTION("s_mov_b64", {
  u64 defined = ~0ull;
  const u64 a = read_scalar64(wave, in, in.operand[1], defined);
  write_scalar64(wave, in, in.operand[0], a, defined);
})
INSTRUCTION("s_movk_i32", { write_scalar(wave, in, in.operand[0], 0, u32(immediate16(in)), ~0u); })

TWO_SCC("s_add_u32 s_add_co_u32", a + b, (u64(a) + b) >> 32)
TWO_SCC("s_sub_u32 s_sub_co_u32", a - b, b > a)
CARRY("s_addc_u32 s_add_co_ci_u32", a + b + carry, (u64(a) + b + carry) >> 32)
CARRY("s_subb_u32 s_sub_co_ci_u32", a - b - carry, u64(b) + carry > a)
TWO_SCC("s_add_i32 s_add_co_i32", a + b, (~(a ^ b) & (a ^ r)) >> 31)
TWO_SCC("s_sub_i32 s_sub_co_i32", a - b, ((a ^ b) & (a ^ r)) >> 31)
TWO("s_mul_i32", a* b)
TWO("s_mul_hi_u32", u32((u64(a) * b) >> 32))
TWO("s_mul_hi_i32", u32((i64(i32(a)) * i32(b)) >> 32))
TWO_SCC("s_lshl_b32", a << (b & 31), r != 0)
TWO_SCC("s_lshr_b32", a >> (b & 31), r != 0)
TWO_SCC("s_ashr_i32", u32(i32(a) >> (b & 31)), r != 0)
TWO_SCC("s_min_i32", signed_of(a) < signed_of(b) ? a : b, signed_of(a) < signed_of(b))
TWO_SCC("s_max_i32", signed_of(a) > signed_of(b) ? a : b, signed_of(a) > signed_of(b))
TWO_SCC("s_min_u32", a < b ? a : b, a < b)
TWO_SCC("s_max_u32", a > b ? a : b, a > b)
TWO_SCC("s_bfe_u32", field(a, b, false), r != 0)
TWO_SCC("s_bfe_i32", field(a, b, true), r != 0)
TWO("s_bfm_b32", ((1u << (a & 31)) - 1) << (b & 31))
TWO("s_pack_ll_b32_b16", (a & 0xffff) | b << 16)
TWO("s_pack_lh_b32_b16", (a & 0xffff) | (b & 0xffff0000))
TWO("s_pack_hh_b32_b16", a >> 16 | (b & 0xffff0000))
TWO_SCC("s_lshl1_add_u32", (a << 1) + b, ((u64(a) << 1) + b) >> 32)
TWO_SCC("s_lshl2_add_u32", (a << 2) + b, ((u64(a) << 2) + b) >> 32)
TWO_SCC("s_lshl3_add_u32", (a << 3) + b, ((u64(a) << 3) + b) >> 32)
TWO_SCC("s_lshl4_add_u32", (a << 4) + b, ((u64(a) << 4) + b) >> 32)
TWO_SCC("s_absdiff_i32", u32(std::abs(i64(i32(a)) - i32(b))), r != 0)
ONE_SCC("s_not_b32", ~a)
ONE_SCC("s_abs_i32", i32(a) < 0 ? 0 - a : a)
ONE_SCC("s_bcnt1_i32_b32", u32(__builtin_popcount(a)))
ONE("s_sext_i32_i16", u32(i32(i16(a))))
ONE("s_sext_i32_i8", u32(i32(i8(a))))
ONE("s_brev_b32", reversed(a))
ONE("s_ff1_i32_b32 s_ctz_i32_b32", a ? u32(__builtin_ctz(a)) : ~0u)
ONE("s_flbit_i32_b32 s_clz_i32_u32", a ? u32(__builtin_clz(a)) : ~0u)

INSTRUCTION("s_addk_i32 s_addk_co_i32", {
  u32 defined = ~0u;
  const u32 a = read_scalar(wave, in, in.operand[0], 0, defined), b = u32(immediate16(in)), r = a + b;
  set_scc(wave, (~(a ^ b) & (a ^ r)) >> 31, defined == ~0u);
  write_scalar(wave, in, in.operand[0], 0, r, all_or_nothing(defined));
})
INSTRUCTION("s_mulk_i32", {
  u32 defined = ~0u;
  const u32 a = read_scalar(wave, in, in.operand[0], 0, defined);
  write_scalar(wave, in, in.operand[0], 0, a * u32(immediate16(in)), all_or_nothing(defined));
})

// Floats of gfx12's scalar unit, and its pseudo-scalar transcendentals.
TWO("s_add_f32", bits_of(as_float(a) + as_float(b)))
TWO("s_sub_f32", bits_of(as_float(a) - as_float(b)))
TWO("s_mul_f32", bits_of(as_float(a) * as_float(b)))
TWO("s_max_f32 s_max_num_f32", bits_of(max_number(as_float(a), as_float(b))))
TWO("s_min_f32 s_min_num_f32", bits_of(min_number(as_float(a), as_float(b))))
TWO("s_cvt_pk_rtz_f16_f32", to_half_toward_zero(as_float(a)) | to_half_toward_zero(as_float(b)) << 16)
ONE("s_ceil_f32", bits_of(std::ceil(as_float(a))))
ONE("s_trunc_f32", bits_of(std::trunc(as_float(a))))
ONE("s_floor_f32", bits_of(std::floor(as_float(a))))
ONE("s_cvt_f32_i32", bits_of(float(i32(a))))
ONE("s_cvt_f32_u32", bits_of(float(a)))
ONE("s_cvt_u32_f32", to_u32(as_float(a)))
ONE("s_cvt_i32_f32", to_i32(as_float(a)))
ONE("v_s_rcp_f32", bits_of(1.f / as_float(a)))
ONE("v_s_exp_f32", bits_of(exp2_of(as_float(a))))
ONE("v_s_log_f32", bits_of(std::log2(as_float(a))))
ONE("v_s_rsq_f32", bits_of(1.f / std::sqrt(as_float(a))))
ONE("v_s_sqrt_f32", bits_of(std::sqrt(as_float(a))))
INSTRUCTION("s_fmac_f32", {
  Two t = two(wave, in, 1);
  const u32 c = read_scalar(wave, in, in.operand[0], 0, t.defined);
  const u32 r = bits_of(std::fma(as_float(t.a), as_float(t.b), as_float(c)));
  write_scalar(wave, in, in.operand[0], 0, r, all_or_nothing(t.defined));
})
INSTRUCTION("s_fmamk_f32 s_fmaak_f32", {
  Two t = two(wave, in, 1);
  const u32 c = read_scalar(wave, in, in.operand[3], 0, t.defined);
  const u32 r = bits_of(std::fma(as_float(t.a), as_float(t.b), as_float(c)));
  write_scalar(wave, in, in.operand[0], 0, r, all_or_nothing(t.defined));
})

// Bitwise: `known` says which bits of the result are defined, from those of a (da) and b (db).
#define BITWISE(names32, names64, expression, known)                                                                   \
  INSTRUCTION(names32, {                                                                                               \
    u32 da = ~0u, db = ~0u;                                                                                            \
    const u32 a = read_scalar(wave, in, in.operand[1], 0, da), b = read_scalar(wave, in, in.operand[2], 0, db);        \
    const u32 r = (expression), defined = (known);                                                                     \
    set_scc(wave, r != 0, defined == ~0u);                                                                             \
    write_scalar(wave, in, in.operand[0], 0, r, defined);                                                              \
  })                                                                                                                   \
  INSTRUCTION(names64, {                                                                                               \
    u64 da = ~0ull, db = ~0ull;                                                                                        \
    const u64 a = read_scalar64(wave, in, in.operand[1], da), b = read_scalar64(wave, in, in.operand[2], db);          \
    const u64 r = (expression), defined = (known);                                                                     \
    set_scc(wave, r != 0, defined == ~0ull);                                                                           \
    write_scalar64(wave, in, in.operand[0], r, defined);                                                               \
  })
BITWISE("s_and_b32", "s_and_b64", a& b, (da & db) | (da & ~a) | (db & ~b))
BITWISE("s_or_b32", "s_or_b64", a | b, (da & db) | (da & a) | (db & b))
BITWISE("s_andn2_b32 s_and_not1_b32", "s_andn2_b64 s_and_not1_b64", a & ~b, (da & db) | (da & ~a) | (db & b))
BITWISE("s_orn2_b32 s_or_not1_b32", "s_orn2_b64 s_or_not1_b64", a | ~b, (da & db) | (da & a) | (db & ~b))
BITWISE("s_xor_b32", "s_xor_b64", a ^ b, da& db)
BITWISE("s_nand_b32", "s_nand_b64", ~(a& b), da& db)
BITWISE("s_nor_b32", "s_nor_b64", ~(a | b), da& db)
BITWISE("s_xnor_b32", "s_xnor_b64", ~(a ^ b), da& db)

#define SHIFT64(names, expression)                                                                                     \
  INSTRUCTION(names, {                                                                                                 \
    u64 da = ~0ull;                                                                                                    \
    u32 db = ~0u;                                                                                                      \
    const u64 a = read_scalar64(wave, in, in.operand[1], da);                                                          \
    const u32 b = read_scalar(wave, in, in.operand[2], 0, db);                                                         \
    const u64 r = (expression);                                                                                        \
    const bool defined = da == ~0ull && db == ~0u;                                                                     \
    set_scc(wave, r != 0, defined);                                                                                    \
    write_scalar64(wave, in, in.operand[0], r, defined ? ~0ull : 0);                                                   \
  })
SHIFT64("s_lshl_b64", a << (b & 63))
SHIFT64("s_lshr_b64", a >> (b & 63))
SHIFT64("s_ashr_i64", u64(i64(a) >> (b & 63)))
// The compiler sign-extends 32 bits by it, whatever the other half holds: what is not in the field need not be defined.
#define FIELD64(names, is_signed)                                                                                      \
  INSTRUCTION(names, {                                                                                                 \
    u64 da = ~0ull;                                                                                                    \
    u32 db = ~0u;                                                                                                      \
    const u64 a = read_scalar64(wave, in, in.operand[1], da);                                                          \
    const u32 b = read_scalar(wave, in, in.operand[2], 0, db), at = b & 63;                                            \
    const u32 count = (b >> 16 & 127) < 64 - at ? b >> 16 & 127 : 64 - at;                                             \
    const u64 mask = count == 0 ? 0 : ~0ull >> (64 - count);                                                           \
    u64 r = a >> at & mask;                                                                                            \
    if (is_signed && count > 0 && r >> (count - 1) & 1) r |= ~mask;                                                    \
    const bool defined = db == ~0u && (da >> at & mask) == mask;                                                       \
    set_scc(wave, r != 0, defined);                                                                                    \
    write_scalar64(wave, in, in.operand[0], r, defined ? ~0ull : 0);                                                   \
  })
FIELD64("s_bfe_u64", false)
FIELD64("s_bfe_i64", true)
INSTRUCTION("s_not_b64", {
  u64 defined = ~0ull;
  const u64 r = ~read_scalar64(wave, in, in.operand[1], defined);
  set_scc(wave, r != 0, defined == ~0ull);
  write_scalar64(wave, in, in.operand[0], r, defined);
})
#define SUM64(names, expression)                                                                                       \
  INSTRUCTION(names, {                                                                                                 \
    u64 defined = ~0ull;                                                                                               \
    const u64 a = read_scalar64(wave, in, in.operand[1], defined), b = read_scalar64(wave, in, in.operand[2], defined); \
    write_scalar64(wave, in, in.operand[0], (expression), defined == ~0ull ? defined : 0);                             \
  })
SUM64("s_add_nc_u64 s_add_u64", a + b)
SUM64("s_sub_nc_u64 s_sub_u64", a - b)
SUM64("s_mul_u64", a* b)

INSTRUCTION("s_cselect_b32", {
  u32 defined = ~0u;
  const u32 r = read_scalar(wave, in, in.operand[selects(wave, in) ? 1 : 2], 0, defined);
  write_scalar(wave, in, in.operand[0], 0, r, defined);
})
INSTRUCTION("s_cselect_b64", {
  u64 defined = ~0ull;
  const u64 r = read_scalar64(wave, in, in.operand[selects(wave, in) ? 1 : 2], defined);
  write_scalar64(wave, in, in.operand[0], r, defined);
})
INSTRUCTION("s_cmov_b32", {
  u32 defined = ~0u;
  if (!selects(wave, in)) return;
  const u32 r = read_scalar(wave, in, in.operand[1], 0, defined);
  write_scalar(wave, in, in.operand[0], 0, r, defined);
})

#define COMPARE(names, expression)                                                                                     \
  INSTRUCTION(names, {                                                                                                 \
    const Two t = two(wave, in, 0);                                                                                    \
    const u32 a = t.a, b = t.b;                                                                                        \
    set_scc(wave, (expression), t.defined == ~0u);                                                                     \
  })
#define COMPARE_IMMEDIATE(names, expression)                                                                           \
  INSTRUCTION(names, {                                                                                                 \
    u32 defined = ~0u;                                                                                                 \
    const u32 a = read_scalar(wave, in, in.operand[0], 0, defined);                                                    \
    const i32 b = immediate16(in);                                                                                     \
    set_scc(wave, (expression), defined == ~0u);                                                                       \
  })
#define SCALAR_COMPARES(suffix, op)                                                                                           \
  COMPARE("s_cmp_" suffix "_i32", i32(a) op i32(b))                                                                    \
  COMPARE("s_cmp_" suffix "_u32", a op b)                                                                              \
  COMPARE("s_cmp_" suffix "_f32", as_float(a) op as_float(b))                                                          \
  COMPARE_IMMEDIATE("s_cmpk_" suffix "_i32", i32(a) op b)                                                              \
  COMPARE_IMMEDIATE("s_cmpk_" suffix "_u32", a op u32(u16(b)))
SCALAR_COMPARES("lt", <)
SCALAR_COMPARES("le", <=)
SCALAR_COMPARES("gt", >)
SCALAR_COMPARES("ge", >=)
SCALAR_COMPARES("eq", ==)
SCALAR_COMPARES("lg", !=)
COMPARE("s_cmp_neq_f32", !(as_float(a) == as_float(b)))
COMPARE("s_bitcmp1_b32", a >> (b & 31) & 1)
COMPARE("s_bitcmp0_b32", !(a >> (b & 31) & 1))
#define COMPARE64(names, op)                                                                                           \
  INSTRUCTION(names, {                                                                                                 \
    u64 defined = ~0ull;                                                                                               \
    const u64 a = read_scalar64(wave, in, in.operand[0], defined), b = read_scalar64(wave, in, in.operand[1], defined); \
    set_scc(wave, a op b, defined == ~0ull);                                                                           \
  })
COMPARE64("s_cmp_eq_u64", ==)
COMPARE64("s_cmp_lg_u64", !=)

#define SET_BIT(names, expression)                                                                                     \
  INSTRUCTION(names, {                                                                                                 \
    const Two t = two(wave, in, 0);                                                                                    \
    const u32 a = t.a, b = t.b;                                                                                        \
    write_scalar(wave, in, in.operand[0], 0, (expression), all_or_nothing(t.defined));                                 \
  })
SET_BIT("s_bitset1_b32", a | 1u << (b & 31))
SET_BIT("s_bitset0_b32", a & ~(1u << (b & 31)))

// The mask that `combine` makes of operand 1, whose undefined bits may not be in it.
template <class Mask, class Combine> void save_exec(Wave& wave, const Instruction& in, Mask a, Mask defined,
                                                    Combine combine) {
  const Mask made = combine(a | Mask(~defined));
  if (made != combine(a & defined)) fault("POISON", wave, in, "exec from an undefined mask");
  wave.set_exec(made);
  set_scc(wave, wave.exec() != 0, true);
}
// The old exec to operand 0, a combination of it (e) and operand 1 (a) to exec.
#define SAVE_EXEC(names32, names64, expression)                                                                        \
  INSTRUCTION(names32, {                                                                                               \
    u32 defined = ~0u;                                                                                                 \
    const u32 given = read_scalar(wave, in, in.operand[1], 0, defined), e = u32(wave.exec());                          \
    write_scalar(wave, in, in.operand[0], 0, e, ~0u);                                                                  \
    save_exec(wave, in, given, defined, [e](u32 a) { return u32(expression); });                                       \
  })                                                                                                                   \
  INSTRUCTION(names64, {                                                                                               \
    u64 defined = ~0ull;                                                                                               \
    const u64 given = read_scalar64(wave, in, in.operand[1], defined), e = wave.exec();                                \
    write_scalar64(wave, in, in.operand[0], e, ~0ull);                                                                 \
    save_exec(wave, in, given, defined, [e](u64 a) { return u64(expression); });                                       \
  })
SAVE_EXEC("s_and_saveexec_b32", "s_and_saveexec_b64", a& e)
SAVE_EXEC("s_or_saveexec_b32", "s_or_saveexec_b64", a | e)
SAVE_EXEC("s_xor_saveexec_b32", "s_xor_saveexec_b64", a ^ e)
SAVE_EXEC("s_andn2_saveexec_b32 s_and_not1_saveexec_b32", "s_andn2_saveexec_b64 s_and_not1_saveexec_b64", a & ~e)

}  // namespace amdgcn
