// SPDX-License-Identifier: MIT
// Between lanes: counting bits below a lane, reading and writing one lane, permutations inside the wave.
#include <utility>

#include "operands.h"

namespace amdgcn {

namespace {

int lane_select(Wave& wave, const Instruction& in, const Operand& o) {
  u32 defined = ~0u;
  const u32 lane = read_scalar(wave, in, o, 0, defined);
  if (defined != ~0u) fault("POISON", wave, in, "undefined lane selection");
  return int(lane & u32(wave.lanes - 1));
}

void read_lane(Wave& wave, const Instruction& in, int vgpr, int lane) {
  before_read_vgpr(wave, in, vgpr);
  write_scalar(wave, in, in.operand[0], 0, wave.vgpr[vgpr][lane], lane_of(wave.vgpr_defined[vgpr], lane) ? ~0u : 0);
}

void count_below(Wave& wave, const Instruction& in, int first) {
  Sources s;
  read_sources(wave, in, s, 2, Type::u32);
  Lanes r;
  each_lane([&](int lane) {
    const int below = lane - first;
    const u32 mask = below <= 0 ? 0 : below >= 32 ? ~0u : (1u << below) - 1;
    r.x[lane] = u32(__builtin_popcount(s.value[0][lane] & mask)) + s.value[1][lane];
  });
  write_result(wave, in, r.x, s);
}

/// v_permlane16 and v_permlanex16: every lane reads the lane of its row (or of the other row) that 4 bits name.
void permute_rows(Wave& wave, const Instruction& in, bool other_row) {
  u32 defined = ~0u;
  const u32 low = read_scalar(wave, in, in.operand[2], 0, defined);
  const u32 high = read_scalar(wave, in, in.operand[3], 0, defined);
  if (defined != ~0u) fault("POISON", wave, in, "undefined lane selection");
  const int from_vgpr = in.operand[1].index;
  before_read_vgpr(wave, in, from_vgpr);
  const bool fetch_inactive = in.selects(0, false), bound_ctrl = in.selects(1, false);
  const u64 exec = wave.exec();
  Lanes r;
  u64 now_defined = 0, written = 0;
  for (int lane = 0; lane < wave.lanes; lane++) {
    const int at = lane & 15, chosen = at < 8 ? low >> (4 * at) & 15 : high >> (4 * (at - 8)) & 15;
    const int from = ((lane & ~15) | chosen) ^ (other_row ? 16 : 0);
    const bool live = lane_of(exec, from) || fetch_inactive;
    if (!live && !bound_ctrl) continue;
    r.x[lane] = live ? wave.vgpr[from_vgpr][from] : 0;
    now_defined |= u64(!live || lane_of(wave.vgpr_defined[from_vgpr], from)) << lane;
    written |= 1ull << lane;
  }
  wave.set_exec(exec & written);
  write_vector(wave, in, vector_index(wave, in), r.x, now_defined);
  wave.set_exec(exec);
}

/// Swaps `span` lanes of the first register, beginning at `span`, with those of the second that begin at 0; again in
/// every 2 * span lanes.
void swap_lanes(Wave& wave, const Instruction& in, int span) {
  const int a = in.operand[0].index, b = in.operand[1].index;
  before_read_vgpr(wave, in, a);
  before_read_vgpr(wave, in, b);
  for (int base = 0; base < 64; base += 2 * span)
    for (int lane = base; lane < base + span; lane++) {
      std::swap(wave.vgpr[a][lane + span], wave.vgpr[b][lane]);
      const u64 from_a = wave.vgpr_defined[a] >> (lane + span) & 1, from_b = wave.vgpr_defined[b] >> lane & 1;
      wave.vgpr_defined[a] = (wave.vgpr_defined[a] & ~(1ull << (lane + span))) | from_b << (lane + span);
      wave.vgpr_defined[b] = (wave.vgpr_defined[b] & ~(1ull << lane)) | from_a << lane;
    }
}

/// ds_bpermute and ds_swizzle: `from(lane)` is read if it is active, else 0.
template <class From> void gather_lanes(Wave& wave, const Instruction& in, int from_vgpr, From from) {
  before_read_vgpr(wave, in, from_vgpr);
  const u64 exec = wave.exec();
  u64 defined = 0;
  Lanes r;
  each_lane([&](int lane) {
    const int source = from(lane);
    const bool live = lane_of(exec, source);
    r.x[lane] = live ? wave.vgpr[from_vgpr][source] : 0;
    defined |= u64(!live || lane_of(wave.vgpr_defined[from_vgpr], source)) << lane;
  });
  const int to = vector_index(wave, in);
  write_vector(wave, in, to, r.x, defined);
  issue(wave, LDS_QUEUE, Access::lane, false, to, 1);
}

Lanes lane_addresses(Wave& wave, const Instruction& in) {
  Lanes room, copy;
  u64 defined = ~0ull;
  const u32* values = read_vector(wave, in, in.operand[1], 0, Type::u32, room, defined);
  if (wave.exec() & ~defined) fault("POISON", wave, in, "lane addresses are undefined");
  each_lane([&](int lane) { copy.x[lane] = (values[lane] + u32(in.offset)) >> 2 & u32(wave.lanes - 1); });
  return copy;
}

}  // namespace

INSTRUCTION("v_mbcnt_lo_u32_b32", { count_below(wave, in, 0); })
INSTRUCTION("v_mbcnt_hi_u32_b32", { count_below(wave, in, 32); })
INSTRUCTION("v_readlane_b32", { read_lane(wave, in, in.operand[1].index, lane_select(wave, in, in.operand[2])); })
INSTRUCTION("v_readfirstlane_b32", {
  if (in.operand[1].kind != Kind::vgpr) {
    u32 defined = ~0u;
    const u32 value = read_scalar(wave, in, in.operand[1], 0, defined);
    return write_scalar(wave, in, in.operand[0], 0, value, defined);
  }
  const u64 exec = wave.exec();
  read_lane(wave, in, in.operand[1].index, exec ? __builtin_ctzll(exec) : 0);
})
INSTRUCTION("v_writelane_b32", {
  u32 defined = ~0u;
  const u32 value = read_scalar(wave, in, in.operand[1], 0, defined);
  const int lane = lane_select(wave, in, in.operand[2]), to = vector_index(wave, in);
  before_write_vgpr(wave, in, to);
  wave.vgpr[to][lane] = value;
  wave.vgpr_defined[to] = (wave.vgpr_defined[to] & ~(1ull << lane)) | u64(defined == ~0u) << lane;
})
INSTRUCTION("v_permlane16_b32", { permute_rows(wave, in, false); })
INSTRUCTION("v_permlanex16_b32", { permute_rows(wave, in, true); })
INSTRUCTION("v_permlane32_swap_b32", { swap_lanes(wave, in, 32); })
INSTRUCTION("v_permlane16_swap_b32", { swap_lanes(wave, in, 16); })

INSTRUCTION("ds_bpermute_b32", {
  const Lanes from = lane_addresses(wave, in);
  gather_lanes(wave, in, in.operand[2].index, [&](int lane) { return int(from.x[lane]); });
})
INSTRUCTION("ds_swizzle_b32", {
  const int pattern = in.offset;
  gather_lanes(wave, in, in.operand[1].index, [&](int lane) {
    if (pattern & 0x8000) return (lane & ~3) | (pattern >> (2 * (lane & 3)) & 3);
    const int and_mask = pattern & 31, or_mask = pattern >> 5 & 31, xor_mask = pattern >> 10 & 31;
    return (lane & ~31) | ((((lane & 31) & and_mask) | or_mask) ^ xor_mask);
  });
})
INSTRUCTION("ds_permute_b32", {
  const Lanes target = lane_addresses(wave, in);
  const int from = in.operand[2].index, to = vector_index(wave, in);
  before_read_vgpr(wave, in, from);
  const u64 exec = wave.exec();
  u64 defined = ~0ull;
  Lanes r = {};
  each_lane([&](int lane) {
    if (!lane_of(exec, lane)) return;
    r.x[target.x[lane]] = wave.vgpr[from][lane];
    if (!lane_of(wave.vgpr_defined[from], lane)) defined &= ~(1ull << target.x[lane]);
  });
  write_vector(wave, in, to, r.x, defined);
  issue(wave, LDS_QUEUE, Access::lane, false, to, 1);
})

}  // namespace amdgcn
