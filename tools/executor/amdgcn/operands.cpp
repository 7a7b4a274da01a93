// SPDX-License-Identifier: MIT
#include "operands.h"

namespace amdgcn {

u32 immediate_bits(const Operand& o, Type type, int part) {
  if (o.is_float) {
    if (type == Type::f16) return to_half(float(o.value));
    if (type == Type::f64 || type == Type::b64) {
      const u64 bits = bit_cast<u64>(o.value);
      return part ? u32(bits >> 32) : u32(bits);
    }
    return bits_of(float(o.value));
  }
  if (type == Type::f64) return part ? o.bits : 0;  // a literal is the high half
  if (type == Type::b64 && part) return o.is_literal ? 0 : u32(i32(o.bits) >> 31);
  return o.bits;
}

u32 read_scalar(Wave& wave, const Instruction& in, const Operand& o, int part, u32& defined, Type type) {
  switch (o.kind) {
    case Kind::immediate: return immediate_bits(o, type, part);
    case Kind::null: return 0;
    case Kind::sgpr: {
      const int r = o.index + part;
      if (r == SCC) {
        if (!wave.scc_defined) defined = 0;
        return wave.scc;
      }
      before_read_sgpr(wave, in, r);
      defined &= wave.sgpr_defined[r];
      return wave.sgpr[r];
    }
    default: fault("DECODE", wave, in, "a scalar operand is expected, not %s", o.text);
  }
}

u64 read_scalar64(Wave& wave, const Instruction& in, const Operand& o, u64& defined, Type type) {
  u32 low_defined = ~0u, high_defined = ~0u;
  const u64 low = read_scalar(wave, in, o, 0, low_defined, type);
  const u64 high = read_scalar(wave, in, o, 1, high_defined, type);
  defined &= low_defined | u64(high_defined) << 32;
  return low | high << 32;
}

void write_scalar(Wave& wave, const Instruction& in, const Operand& o, int part, u32 value, u32 defined) {
  if (o.kind == Kind::null) return;
  if (o.kind != Kind::sgpr) fault("DECODE", wave, in, "a scalar destination is expected, not %s", o.text);
  const int r = o.index + part;
  if (__builtin_expect(wave.pending, 0) && wave.sgpr_pending[r])
    fault("WAIT", wave, in, "s%d overwritten while a load to it is outstanding", r);
  const bool is_exec = r == EXEC || (r == EXEC + 1 && wave.lanes == 64);
  if (is_exec && defined != ~0u) fault("POISON", wave, in, "exec written from undefined bits (%08x)", ~defined);
  wave.sgpr[r] = value;
  wave.sgpr_defined[r] = defined;
}

void write_scalar64(Wave& wave, const Instruction& in, const Operand& o, u64 value, u64 defined) {
  write_scalar(wave, in, o, 0, u32(value), u32(defined));
  write_scalar(wave, in, o, 1, u32(value >> 32), u32(defined >> 32));
}

u64 read_mask(Wave& wave, const Instruction& in, const Operand& o, u64& defined) {
  if (wave.lanes == 64) return read_scalar64(wave, in, o, defined);
  u32 low_defined = ~0u;
  const u64 mask = read_scalar(wave, in, o, 0, low_defined);
  defined &= low_defined;
  return mask;
}

void write_mask(Wave& wave, const Instruction& in, const Operand& o, u64 value, u64 defined) {
  if (wave.lanes == 64)
    write_scalar64(wave, in, o, value, defined);
  else
    write_scalar(wave, in, o, 0, u32(value), u32(defined));
}

int vector_index(const Wave& wave, const Instruction& in, int k) {
  if (in.operand[k].kind != Kind::vgpr)
    fault("DECODE", wave, in, "a vector register is expected, not %s", in.operand[k].text);
  return in.operand[k].index;
}

const u32* read_vector(Wave& wave, const Instruction& in, const Operand& o, int part, Type type, Lanes& room,
                       u64& defined) {
  const u32* values;
  if (o.kind == Kind::vgpr) {
    const int r = o.index + part;
    before_read_vgpr(wave, in, r);
    defined &= wave.vgpr_defined[r];
    values = wave.vgpr[r];
  } else {
    u32 bits_defined = ~0u;
    const u32 value = read_scalar(wave, in, o, part, bits_defined, type);
    if (bits_defined != ~0u) defined = 0;
    each_lane([&](int lane) { room.x[lane] = value; });
    values = room.x;
  }
  if (o.half != Half::whole) {
    const int shift = o.half == Half::high ? 16 : 0;
    each_lane([&](int lane) { room.x[lane] = values[lane] >> shift & 0xffff; });
    values = room.x;
  }
  if (o.negate || o.absolute) {
    if (type == Type::u32) fault("DECODE", wave, in, "neg or abs on an integer operand");
    const bool is_64 = type == Type::f64 || type == Type::b64;
    if (!is_64 || part == 1) {
      const u32 sign = type == Type::f16 || type == Type::bf16 ? 0x8000u : 0x80000000u;
      const u32 keep = o.absolute ? ~sign : ~0u, flip = o.negate ? sign : 0;
      each_lane([&](int lane) { room.x[lane] = (values[lane] & keep) ^ flip; });
      values = room.x;
    }
  }
  return values;
}

void write_vector(Wave& wave, const Instruction& in, int vgpr, const u32* values, u64 defined) {
  before_write_vgpr(wave, in, vgpr);
  const u64 exec = wave.exec();
  u32* to = wave.vgpr[vgpr];
  if (exec == wave.all_lanes)
    std::memcpy(to, values, size_t(wave.lanes) * 4);
  else
    each_lane([&](int lane) {
      if (lane_of(exec, lane)) to[lane] = values[lane];
    });
  wave.vgpr_defined[vgpr] = (wave.vgpr_defined[vgpr] & ~exec) | (defined & exec);
}

namespace {

/// The lane that a DPP control reads for `lane`, or -1 outside the row.
int dpp_source(const Wave& wave, const Instruction& in, int lane) {
  const int control = in.dpp, row = lane & ~15, at = lane & 15, by = control & 15;
  if (control < 0x100) return (lane & ~3) | (control >> (2 * (lane & 3)) & 3);   // quad_perm
  if (control > 0x100 && control < 0x110) return at + by < 16 ? lane + by : -1;  // row_shl
  if (control > 0x110 && control < 0x120) return at - by >= 0 ? lane - by : -1;  // row_shr
  if (control > 0x120 && control < 0x130) return row | ((at - by) & 15);         // row_ror
  if (control == 0x130) return lane < wave.lanes - 1 ? lane + 1 : -1;            // wave_shl:1
  if (control == 0x138) return lane ? lane - 1 : -1;                             // wave_shr:1
  if (control == 0x140) return row | (15 - at);                                  // row_mirror
  if (control == 0x141) return (lane & ~7) | (7 - (lane & 7));                   // row_half_mirror
  if (control == 0x142) return lane >= 16 ? row - 1 : -1;                        // row_bcast:15
  if (control == 0x143) return lane >= 32 ? 31 : -1;                             // row_bcast:31
  if (control >= 0x150 && control < 0x160) return row | by;                      // row_share, row_newbcast
  if (control >= 0x160 && control < 0x170) return row | (at ^ by);               // row_xmask
  fault("DECODE", wave, in, "unknown DPP control %x", control);
}

const u32* move_by_dpp(Wave& wave, const Instruction& in, const u32* values, Lanes& room, u64& defined, u64& written) {
  const u64 exec = wave.exec();
  u64 now_defined = 0;
  written = 0;
  for (int lane = 0; lane < wave.lanes; lane++) {
    const int from = dpp_source(wave, in, lane);
    if (!(in.row_mask >> (lane >> 4) & 1) || !(in.bank_mask >> ((lane & 15) >> 2) & 1)) continue;
    if (from >= 0 && lane_of(exec, from)) {
      room.x[lane] = values[from];
      now_defined |= u64(lane_of(defined, from)) << lane;
      written |= 1ull << lane;
    } else if (in.bound_ctrl) {
      room.x[lane] = 0;
      now_defined |= 1ull << lane;
      written |= 1ull << lane;
    }
  }
  defined = now_defined;
  return room.x;
}

const u32* select_by_sdwa(const u32* values, int selection, bool sign_extend, Lanes& room) {
  if (selection == SDWA_DWORD) return values;
  each_lane([&](int lane) {
    u32 value = values[lane];
    if (selection < 4) {
      value = value >> (8 * selection) & 0xff;
      if (sign_extend) value = u32(i32(i8(value)));
    } else {
      value = value >> (16 * (selection - 4)) & 0xffff;
      if (sign_extend) value = u32(i32(i16(value)));
    }
    room.x[lane] = value;
  });
  return room.x;
}

void place_by_sdwa(const Instruction& in, const u32* values, const u32* old, Lanes& room) {
  const bool is_byte = in.sdwa_to < 4;
  const int shift = is_byte ? 8 * in.sdwa_to : 16 * (in.sdwa_to - 4);
  const u32 mask = (is_byte ? 0xffu : 0xffffu) << shift;
  each_lane([&](int lane) {
    u32 value = values[lane] << shift & mask;
    if (in.sdwa_unused == 2)  // preserve
      value |= old[lane] & ~mask;
    else if (in.sdwa_unused == 1 && value & (mask & ~(mask >> 1)))  // extend the sign
      value |= ~(mask | (shift ? (1u << shift) - 1 : 0));
    room.x[lane] = value;
  });
}

}  // namespace

void read_sources(Wave& wave, const Instruction& in, Sources& s, int count, Type type, int first) {
  for (int k = 0; k < count; k++) {
    u64 defined = ~0ull;
    s.value[k] = read_vector(wave, in, in.operand[first + k], 0, type, s.room[k], defined);
    if (k == 0 && in.dpp >= 0) s.value[0] = move_by_dpp(wave, in, s.value[0], s.moved[0], defined, s.written);
    if (in.sdwa && k < 2)
      s.value[k] = select_by_sdwa(s.value[k], in.sdwa_from[k], in.operand[first + k].sign_extend, s.moved[k]);
    s.defined &= defined;
  }
}

void write_result(Wave& wave, const Instruction& in, const u32* values, const Sources& s, Type type) {
  const int to = vector_index(wave, in);
  const u32* old = wave.vgpr[to];
  u64 defined = s.defined;
  Lanes scaled, placed;
  if (in.output_scale || in.clamp) {
    if (type != Type::f32) fault("DECODE", wave, in, "omod or clamp on what is no float32");
    const float factor = in.output_scale == 1 ? 2.f : in.output_scale == 2 ? 4.f : in.output_scale == 3 ? 0.5f : 1.f;
    each_lane([&](int lane) {
      float value = as_float(values[lane]) * factor;
      if (in.clamp) value = value > 0 ? (value < 1 ? value : 1.f) : 0.f;
      scaled.x[lane] = bits_of(value);
    });
    values = scaled.x;
  }
  if (in.sdwa && in.sdwa_to != SDWA_DWORD) {
    place_by_sdwa(in, values, old, placed);
    if (in.sdwa_unused == 2) defined &= wave.vgpr_defined[to];
    values = placed.x;
  }
  Lanes halved;
  if (in.operand[0].half != Half::whole) {
    const bool high = in.operand[0].half == Half::high;
    each_lane([&](int lane) {
      halved.x[lane] =
          high ? (old[lane] & 0xffff) | values[lane] << 16 : (old[lane] & 0xffff0000) | (values[lane] & 0xffff);
    });
    values = halved.x;
  }
  if (s.written == ~0ull) return write_vector(wave, in, to, values, defined);
  const u64 exec = wave.exec();
  wave.set_exec(exec & s.written);
  write_vector(wave, in, to, values, defined);
  wave.set_exec(exec);
}

}  // namespace amdgcn
