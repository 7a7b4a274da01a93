// SPDX-License-Identifier: MIT
// Vector arithmetic on 32 bits and fewer: one line a mnemonic. a, b, c are a lane's sources.
#include <algorithm>

#include "operands.h"

namespace amdgcn {

#define V1(names, type, expression)                                                                                    \
  INSTRUCTION(names, {                                                                                                 \
    Sources s;                                                                                                         \
    read_sources(wave, in, s, 1, type);                                                                                \
    Lanes r;                                                                                                           \
    each_lane([&](int lane) {                                                                                          \
      const u32 a = s.value[0][lane];                                                                                  \
      r.x[lane] = (expression);                                                                                        \
    });                                                                                                                \
    write_result(wave, in, r.x, s, type);                                                                              \
  })
#define V2(names, type, expression)                                                                                    \
  INSTRUCTION(names, {                                                                                                 \
    Sources s;                                                                                                         \
    read_sources(wave, in, s, 2, type);                                                                                \
    Lanes r;                                                                                                           \
    each_lane([&](int lane) {                                                                                          \
      const u32 a = s.value[0][lane], b = s.value[1][lane];                                                            \
      r.x[lane] = (expression);                                                                                        \
    });                                                                                                                \
    write_result(wave, in, r.x, s, type);                                                                              \
  })
#define V3(names, type, expression)                                                                                    \
  INSTRUCTION(names, {                                                                                                 \
    Sources s;                                                                                                         \
    read_sources(wave, in, s, 3, type);                                                                                \
    Lanes r;                                                                                                           \
    each_lane([&](int lane) {                                                                                          \
      const u32 a = s.value[0][lane], b = s.value[1][lane], c = s.value[2][lane];                                      \
      r.x[lane] = (expression);                                                                                        \
    });                                                                                                                \
    write_result(wave, in, r.x, s, type);                                                                              \
  })
#define F1(names, expression) V1(names, Type::f32, bits_of([](float x) -> float { return (expression); }(as_float(a))))
#define F2(names, expression)                                                                                          \
  V2(names, Type::f32, bits_of([](float x, float y) -> float { return (expression); }(as_float(a), as_float(b))))
#define F3(names, expression)                                                                                          \
  V3(names, Type::f32,                                                                                                 \
     bits_of([](float x, float y, float z) -> float { return (expression); }(as_float(a), as_float(b), as_float(c))))
#define H2(names, expression)                                                                                          \
  V2(names, Type::f16, to_half([](float x, float y) -> float { return (expression); }(from_half(a), from_half(b))))

namespace {

i32 signed24(u32 a) { return i32(a << 8) >> 8; }
u32 unsigned24(u32 a) { return a & 0xffffff; }

u32 signed_field(u32 a, u32 at, u32 count) {
  at &= 31, count &= 31;
  if (!count) return 0;
  return count + at < 32 ? u32(i32(a >> at << (32 - count)) >> (32 - count)) : u32(i32(a) >> at);
}
u32 unsigned_field(u32 a, u32 at, u32 count) { return count & 31 ? a >> (at & 31) & ((1u << (count & 31)) - 1) : 0; }

/// v_perm_b32: byte i of the result is chosen by byte i of c from the eight of b (0..3) and a (4..7), signs, 0 or 255.
u32 permuted(u32 a, u32 b, u32 c) {
  const u64 both = u64(a) << 32 | b;
  u32 r = 0;
  for (int i = 0; i < 4; i++) {
    const u32 k = c >> (8 * i) & 255;
    const u32 byte = k < 8     ? both >> (8 * k) & 255
                     : k < 12  ? (both >> (16 * (k - 8) + 15) & 1 ? 255 : 0)
                     : k == 12 ? 0
                               : 255;
    r |= byte << (8 * i);
  }
  return r;
}

u32 truth_table(u32 a, u32 b, u32 c, int table) {
  u32 r = 0;
  for (int k = 0; k < 8; k++)
    if (table >> k & 1) r |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return r;
}

/// d = f(a, b, d)
template <class F> void accumulate(Wave& wave, const Instruction& in, F&& f) {
  Sources s;
  read_sources(wave, in, s, 2, Type::f32);
  const int to = vector_index(wave, in);
  before_read_vgpr(wave, in, to);
  s.defined &= wave.vgpr_defined[to];
  Lanes r;
  each_lane([&](int lane) {
    r.x[lane] = bits_of(f(as_float(s.value[0][lane]), as_float(s.value[1][lane]), as_float(wave.vgpr[to][lane])));
  });
  write_result(wave, in, r.x, s, Type::f32);
}

}  // namespace

V1("v_mov_b32", Type::f32, a)
V1("v_mov_b16", Type::f16, a & 0xffff)
V1("v_not_b32", Type::u32, ~a)
V1("v_not_b16", Type::u32, ~a & 0xffff)
V1("v_bfrev_b32", Type::u32, reversed(a))
V1("v_ffbl_b32 v_ctz_i32_b32", Type::u32, a ? u32(__builtin_ctz(a)) : ~0u)
V1("v_ffbh_u32 v_clz_i32_u32", Type::u32, a ? u32(__builtin_clz(a)) : ~0u)

F1("v_exp_f32", exp2_of(x))
F1("v_log_f32", std::log2(x))
F1("v_rcp_f32 v_rcp_iflag_f32", 1.f / x)
F1("v_rsq_f32", 1.f / std::sqrt(x))
F1("v_sqrt_f32", std::sqrt(x))
F1("v_floor_f32", std::floor(x))
F1("v_ceil_f32", std::ceil(x))
F1("v_rndne_f32", std::nearbyint(x))
F1("v_trunc_f32", std::trunc(x))
F1("v_fract_f32", std::fmin(x - std::floor(x), 0.99999994f))

V1("v_cvt_f32_i32", Type::u32, bits_of(float(i32(a))))
V1("v_cvt_f32_u32", Type::u32, bits_of(float(a)))
V1("v_cvt_i32_f32", Type::f32, to_i32(as_float(a)))
V1("v_cvt_u32_f32", Type::f32, to_u32(as_float(a)))
V1("v_cvt_f32_f16", Type::f16, bits_of(from_half(a)))
V1("v_cvt_f16_f32", Type::f32, to_half(as_float(a)))
V1("v_cvt_f32_bf16", Type::bf16, a << 16)
V1("v_cvt_f32_ubyte0", Type::u32, bits_of(float(a & 255)))
V1("v_cvt_f32_ubyte1", Type::u32, bits_of(float(a >> 8 & 255)))
V1("v_cvt_f32_ubyte2", Type::u32, bits_of(float(a >> 16 & 255)))
V1("v_cvt_f32_ubyte3", Type::u32, bits_of(float(a >> 24)))
V1("v_cvt_u32_u16", Type::u32, a & 0xffff)
V1("v_cvt_i32_i16", Type::u32, u32(i32(i16(a))))
V2("v_cvt_pkrtz_f16_f32 v_cvt_pk_rtz_f16_f32", Type::f32,
   to_half_toward_zero(as_float(a)) | to_half_toward_zero(as_float(b)) << 16)
V2("v_cvt_pk_bf16_f32", Type::f32, to_bfloat(as_float(a)) | to_bfloat(as_float(b)) << 16)
V2("v_cvt_pk_f16_f32", Type::f32, to_half(as_float(a)) | to_half(as_float(b)) << 16)

F2("v_add_f32", x + y)
F2("v_sub_f32", x - y)
F2("v_subrev_f32", y - x)
F2("v_mul_f32", x* y)
F2("v_max_f32 v_max_num_f32", max_number(x, y))
F2("v_min_f32 v_min_num_f32", min_number(x, y))
V2("v_ldexp_f32", Type::f32, bits_of(std::ldexp(as_float(a), i32(b))))
F3("v_fma_f32 v_fmamk_f32 v_fmaak_f32", std::fma(x, y, z))
F3("v_mad_f32 v_madmk_f32 v_madak_f32", float(double(float(double(x) * y)) + z))  // rounds the product first
F3("v_max3_f32 v_max3_num_f32", max_number(max_number(x, y), z))
F3("v_min3_f32 v_min3_num_f32", min_number(min_number(x, y), z))
F3("v_maxmin_f32 v_maxmin_num_f32", min_number(max_number(x, y), z))
F3("v_minmax_f32 v_minmax_num_f32", max_number(min_number(x, y), z))
F3("v_med3_f32 v_med3_num_f32", max_number(min_number(x, y), min_number(max_number(x, y), z)))
INSTRUCTION("v_fmac_f32", { accumulate(wave, in, [](float a, float b, float c) { return std::fma(a, b, c); }); })
INSTRUCTION("v_mac_f32", {  // rounds the product first
  accumulate(wave, in, [](float a, float b, float c) {
    const float product = a * b;
    return product + c;
  });
})
INSTRUCTION("v_dot2_f32_f16 v_dot2acc_f32_f16", {
  Sources s;
  read_sources(wave, in, s, 2, Type::u32);
  Operand addend = in.operands > 3 ? in.operand[3] : in.operand[0];
  Lanes room, r;
  const u32* c = read_vector(wave, in, addend, 0, Type::f32, room, s.defined);
  each_lane([&](int lane) {
    const u32 a = s.value[0][lane], b = s.value[1][lane];
    r.x[lane] = bits_of(from_half(a) * from_half(b) + from_half(a >> 16) * from_half(b >> 16) + as_float(c[lane]));
  });
  write_result(wave, in, r.x, s, Type::f32);
})

H2("v_add_f16", x + y)
H2("v_sub_f16", x - y)
H2("v_mul_f16", x* y)
H2("v_max_f16 v_max_num_f16", max_number(x, y))
H2("v_min_f16 v_min_num_f16", min_number(x, y))

V2("v_add_u32 v_add_nc_u32 v_add_i32 v_add_nc_i32", Type::u32, a + b)
V2("v_sub_u32 v_sub_nc_u32 v_sub_i32", Type::u32, a - b)
V2("v_subrev_u32 v_subrev_nc_u32", Type::u32, b - a)
V2("v_and_b32", Type::u32, a& b)
V2("v_or_b32", Type::u32, a | b)
V2("v_xor_b32", Type::u32, a ^ b)
V2("v_xnor_b32", Type::u32, ~(a ^ b))
V2("v_lshlrev_b32", Type::u32, b << (a & 31))
V2("v_lshrrev_b32", Type::u32, b >> (a & 31))
V2("v_ashrrev_i32", Type::u32, u32(i32(b) >> (a & 31)))
V2("v_max_i32", Type::u32, std::max(i32(a), i32(b)))
V2("v_min_i32", Type::u32, std::min(i32(a), i32(b)))
V2("v_max_u32", Type::u32, std::max(a, b))
V2("v_min_u32", Type::u32, std::min(a, b))
V2("v_mul_u32_u24", Type::u32, unsigned24(a) * unsigned24(b))
V2("v_mul_i32_i24", Type::u32, u32(signed24(a)) * u32(signed24(b)))
V2("v_mul_hi_u32_u24", Type::u32, u32((u64(unsigned24(a)) * unsigned24(b)) >> 32))
V2("v_mul_lo_u32", Type::u32, a* b)
V2("v_mul_hi_u32", Type::u32, u32((u64(a) * b) >> 32))
V2("v_mul_hi_i32", Type::u32, u32((i64(i32(a)) * i32(b)) >> 32))
V2("v_bcnt_u32_b32", Type::u32, u32(__builtin_popcount(a)) + b)
V2("v_bfm_b32", Type::u32, ((1u << (a & 31)) - 1) << (b & 31))
V3("v_add3_u32", Type::u32, a + b + c)
V3("v_or3_b32", Type::u32, a | b | c)
V3("v_xor3_b32", Type::u32, a ^ b ^ c)
V3("v_lshl_or_b32", Type::u32, a << (b & 31) | c)
V3("v_and_or_b32", Type::u32, (a & b) | c)
V3("v_lshl_add_u32", Type::u32, (a << (b & 31)) + c)
V3("v_add_lshl_u32", Type::u32, (a + b) << (c & 31))
V3("v_xad_u32", Type::u32, (a ^ b) + c)
V3("v_bfe_u32", Type::u32, unsigned_field(a, b, c))
V3("v_bfe_i32", Type::u32, signed_field(a, b, c))
V3("v_bfi_b32", Type::u32, (a & b) | (~a & c))
V3("v_bitop3_b32", Type::u32, truth_table(a, b, c, in.bitop3))
V3("v_bitop3_b16", Type::u32, truth_table(a, b, c, in.bitop3) & 0xffff)
V3("v_alignbit_b32", Type::u32, u32((u64(a) << 32 | b) >> (c & 31)))
V3("v_alignbyte_b32", Type::u32, u32((u64(a) << 32 | b) >> (8 * (c & 3))))
V3("v_perm_b32", Type::u32, permuted(a, b, c))
V3("v_max3_i32", Type::u32, std::max({i32(a), i32(b), i32(c)}))
V3("v_min3_i32", Type::u32, std::min({i32(a), i32(b), i32(c)}))
V3("v_med3_i32", Type::u32, std::max(std::min(i32(a), i32(b)), std::min(std::max(i32(a), i32(b)), i32(c))))
V3("v_mad_u32_u24", Type::u32, unsigned24(a) * unsigned24(b) + c)
V3("v_mad_i32_i24", Type::u32, u32(signed24(a)) * u32(signed24(b)) + c)

V2("v_add_u16 v_add_nc_u16 v_add_nc_i16", Type::u32, (a + b) & 0xffff)
V2("v_sub_u16 v_sub_nc_u16 v_sub_nc_i16", Type::u32, (a - b) & 0xffff)
V2("v_mul_lo_u16", Type::u32, (a * b) & 0xffff)
V2("v_lshlrev_b16", Type::u32, b << (a & 15) & 0xffff)
V2("v_lshrrev_b16", Type::u32, (b & 0xffff) >> (a & 15))
V2("v_ashrrev_i16", Type::u32, u32(i16(b) >> (a & 15)) & 0xffff)
V2("v_and_b16", Type::u32, a & b & 0xffff)
V2("v_or_b16", Type::u32, (a | b) & 0xffff)
V2("v_xor_b16", Type::u32, (a ^ b) & 0xffff)
V2("v_max_u16", Type::u32, std::max(a & 0xffff, b & 0xffff))
V2("v_min_u16", Type::u32, std::min(a & 0xffff, b & 0xffff))
V3("v_mad_u16", Type::u32, (a * b + c) & 0xffff)

INSTRUCTION("v_pack_b32_f16", {
  Sources s;
  read_sources(wave, in, s, 2, Type::f16);
  const bool high_a = in.operand[1].half == Half::whole && in.selects(0, false);
  const bool high_b = in.operand[2].half == Half::whole && in.selects(1, false);
  Lanes r;
  each_lane([&](int lane) {
    const u32 a = s.value[0][lane] >> (high_a ? 16 : 0), b = s.value[1][lane] >> (high_b ? 16 : 0);
    r.x[lane] = (a & 0xffff) | b << 16;
  });
  write_result(wave, in, r.x, s);
})

INSTRUCTION("v_cndmask_b32 v_cndmask_b16", {
  if (in.dpp >= 0) fault("DECODE", wave, in, "v_cndmask with DPP");
  Sources s;
  Lanes room_a, room_b, r;
  u64 a_defined = ~0ull, b_defined = ~0ull, mask_defined = ~0ull;
  const u32* a = read_vector(wave, in, in.operand[1], 0, Type::f32, room_a, a_defined);
  const u32* b = read_vector(wave, in, in.operand[2], 0, Type::f32, room_b, b_defined);
  Operand condition = in.operand[3];
  if (in.operands < 4) condition.kind = Kind::sgpr, condition.index = VCC;
  const u64 mask = read_mask(wave, in, condition, mask_defined);
  each_lane([&](int lane) { r.x[lane] = lane_of(mask, lane) ? b[lane] : a[lane]; });
  s.defined = mask_defined & ((mask & b_defined) | (~mask & a_defined));
  write_result(wave, in, r.x, s, Type::f32);
})

INSTRUCTION("v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32", {
  u64 defined = ~0ull;
  Lanes room, r;
  const u32* a = read_vector(wave, in, in.operand[1], 0, Type::f32, room, defined);
  std::memcpy(r.x, a, sizeof r.x);
  write_vector(wave, in, vector_index(wave, in), r.x, defined);
})

}  // namespace amdgcn
