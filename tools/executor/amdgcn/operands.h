// SPDX-License-Identifier: MIT
// Reading and writing registers with every check: waits, hazards, definedness.
#pragma once
#include "machine.h"

namespace amdgcn {

enum class Type { f32, u32, f16, bf16, b64, f64 };

struct Lanes { alignas(64) u32 x[64]; };

template <class Body> inline void each_lane(Body body) {
  for (int lane = 0; lane < 64; lane++) body(lane);
}

inline u32 reversed(u32 a) {
  u32 r = 0;
  for (int i = 0; i < 32; i++) r |= (a >> i & 1) << (31 - i);
  return r;
}

inline bool lane_of(u64 mask, int lane) { return mask >> lane & 1; }

// --- checks before a register is touched ---
inline void check_hazard(const Wave& wave, const Instruction& in, int r) {
  if (__builtin_expect(wave.wait_states < wave.ready[r], 0))
    fault("HAZARD", wave, in, "v%d needs %u more wait states after the MFMA that wrote it", r,
          wave.ready[r] - wave.wait_states);
}
inline void before_read_vgpr(const Wave& wave, const Instruction& in, int r) {
  check_hazard(wave, in, r);
  if (__builtin_expect(wave.pending, 0) && wave.vgpr_pending[r])
    fault("WAIT", wave, in, "v%d read before its load was waited for", r);
}
inline void before_read_sgpr(const Wave& wave, const Instruction& in, int r) {
  if (__builtin_expect(wave.pending, 0) && wave.sgpr_pending[r])
    fault("WAIT", wave, in, "s%d read before its load was waited for", r);
}
inline void before_write_vgpr(const Wave& wave, const Instruction& in, int r) {
  check_hazard(wave, in, r);
  if (__builtin_expect(wave.pending, 0) && wave.vgpr_pending[r])
    fault("WAIT", wave, in, "v%d overwritten while a load to it is outstanding", r);
}
/// A load may overwrite an older load of the same queue, which returns in order.
inline void before_load_vgpr(const Wave& wave, const Instruction& in, int r, int queue) {
  check_hazard(wave, in, r);
  if (__builtin_expect(wave.pending, 0) && wave.vgpr_pending[r] && wave.vgpr_queue[r] != queue)
    fault("WAIT", wave, in, "v%d overwritten while a load of another kind is outstanding", r);
}

// --- scalars: `defined` is narrowed to the bits that are ---
u32 immediate_bits(const Operand&, Type, int part);
u32 read_scalar(Wave&, const Instruction&, const Operand&, int part, u32& defined, Type = Type::u32);
u64 read_scalar64(Wave&, const Instruction&, const Operand&, u64& defined, Type = Type::b64);
void write_scalar(Wave&, const Instruction&, const Operand&, int part, u32 value, u32 defined);
void write_scalar64(Wave&, const Instruction&, const Operand&, u64 value, u64 defined);
/// Lane masks: one or two registers, by the size of the wave.
u64 read_mask(Wave&, const Instruction&, const Operand&, u64& defined);
void write_mask(Wave&, const Instruction&, const Operand&, u64 value, u64 defined);

// --- vectors ---
/// 64 lanes of an operand, modifiers applied: a register's own memory, or `room`. Narrows `defined` to defined lanes.
const u32* read_vector(Wave&, const Instruction&, const Operand&, int part, Type, Lanes& room, u64& defined);
/// Writes the lanes of exec.
void write_vector(Wave&, const Instruction&, int vgpr, const u32* values, u64 defined);
/// The vector register that operand k names.
int vector_index(const Wave&, const Instruction&, int k = 0);

/// Sources of a vector instruction after DPP and SDWA, and where its result goes.
struct Sources {
  Lanes room[3], moved[2];
  const u32* value[3];
  u64 defined = ~0ull;
  u64 written = ~0ull;  // lanes that DPP lets write
};
void read_sources(Wave&, const Instruction&, Sources&, int count, Type, int first = 1);
/// Applies output scale, clamp, SDWA and the half of a register, then writes operand 0.
void write_result(Wave&, const Instruction&, const u32* values, const Sources&, Type = Type::u32);

}  // namespace amdgcn
