// SPDX-License-Identifier: MIT
// LDS, with a vector clock per granule: access B follows access A of another wave only where a barrier lies between,
// that is where B's wave has waited at least once more than A's wave had signalled.
#include "memory.h"

namespace amdgcn {

namespace {

void check(Machine& machine, const Wave& wave, const Instruction& in, u32 address, int bytes, bool writes,
           bool is_atomic) {
  Lds& lds = machine.lds;
  if (u64(address) + u64(bytes) > lds.size)
    fault("OOB", wave, in, "LDS address %u + %d of %u", address, bytes, lds.size);
  if (!machine.options.races) return;
  const u8 own = u8(wave.number);
  const u32 now = wave.signals + 1;
  const Granule* const end = &lds.granules[(address + u32(bytes) - 1) >> lds.granule_shift];
  for (Granule* g = &lds.granules[address >> lds.granule_shift]; g <= end; g++) {
    if (__builtin_expect(wave.waits < g->written && g->writer != own && !(is_atomic && g->atomic), 0))
      fault("RACE", wave, in, "LDS %u %s, written by wave %d with no barrier between", address,
            writes ? "written" : "read", g->writer);
    if (!writes) {
      if (g->reader == own || g->read == 0) {
        g->read = now, g->reader = own;
      } else if (now >= g->read) {
        g->read_by_others = g->read, g->other_reader = g->reader;
        g->read = now, g->reader = own;
      } else if (now > g->read_by_others) {
        g->read_by_others = now, g->other_reader = own;
      }
      continue;
    }
    const bool mine = g->reader == own;
    if (__builtin_expect(wave.waits < (mine ? g->read_by_others : g->read), 0))
      fault("RACE", wave, in, "LDS %u written, read by wave %d with no barrier between", address,
            mine ? g->other_reader : g->reader);
    g->written = now;
    g->writer = own;
    g->atomic = is_atomic;
  }
}

Lanes addresses(Wave& wave, const Instruction& in, int operand) {
  Lanes room, copy;
  u64 defined = ~0ull;
  const u32* values = read_vector(wave, in, in.operand[operand], 0, Type::u32, room, defined);
  const u64 poisoned = wave.exec() & ~defined;
  if (poisoned) fault("POISON", wave, in, "LDS address undefined in lanes %016llx", (unsigned long long)poisoned);
  std::memcpy(copy.x, values, sizeof copy.x);  // the destination may be the register of the address
  return copy;
}

/// The address at which an access begins: `pair` is -1 for a single one, else 0 or 1 of two of `stride` elements.
u32 place(const Instruction& in, u32 address, int bytes, int pair, int stride) {
  return address + u32(pair < 0 ? in.offset : (pair ? in.offset1 : in.offset0) * bytes * stride);
}

void read(Machine& machine, Wave& wave, const Instruction& in, int bytes, Extend extend, int stride = 0) {
  const Lanes at = addresses(wave, in, 1);
  const int to = vector_index(wave, in), count = words(bytes), accesses = stride ? 2 : 1;
  for (int i = 0; i < count * accesses; i++) before_load_vgpr(wave, in, to + i, LDS_QUEUE);
  Loaded loaded(wave, to, count * accesses, extend);
  each_active(wave, [&](int lane) {
    for (int access = 0; access < accesses; access++) {
      const u32 address = place(in, at.x[lane], bytes, stride ? access : -1, stride);
      check(machine, wave, in, address, bytes, false, false);
      for (int i = 0; i < count; i++) {
        const u32 from = address + u32(4 * i);
        const int size = std::min(4, bytes - 4 * i);
        u32 value = 0;
        std::memcpy(&value, &machine.lds.bytes[from], size_t(size));
        loaded.put(access * count + i, lane, value, all_marked(&machine.lds.defined[from], size));
      }
    }
  });
  issue(wave, LDS_QUEUE, Access::lds, false, to, count * accesses);
}

void write(Machine& machine, Wave& wave, const Instruction& in, int bytes, bool high_half, int stride = 0) {
  const Lanes at = addresses(wave, in, 0);
  const int count = words(bytes), accesses = stride ? 2 : 1;
  for (int access = 0; access < accesses; access++)
    for (int i = 0; i < count; i++) before_read_vgpr(wave, in, vector_index(wave, in, 1 + access) + i);
  each_active(wave, [&](int lane) {
    for (int access = 0; access < accesses; access++) {
      const u32 address = place(in, at.x[lane], bytes, stride ? access : -1, stride);
      check(machine, wave, in, address, bytes, true, false);
      for (int i = 0; i < count; i++) {
        const int from = in.operand[1 + access].index + i, size = std::min(4, bytes - 4 * i);
        const u32 value = wave.vgpr[from][lane] >> (high_half ? 16 : 0), to = address + u32(4 * i);
        std::memcpy(&machine.lds.bytes[to], &value, size_t(size));
        std::memset(&machine.lds.defined[to], lane_of(wave.vgpr_defined[from], lane), size_t(size));
      }
    }
  });
  issue(wave, LDS_QUEUE, Access::lds, true);
}

template <class Combine> void combined(Machine& machine, Wave& wave, const Instruction& in, Combine combine) {
  const Lanes at = addresses(wave, in, 0);
  const int from = vector_index(wave, in, 1);
  before_read_vgpr(wave, in, from);
  each_active(wave, [&](int lane) {
    const u32 address = at.x[lane] + u32(in.offset);
    check(machine, wave, in, address, 4, true, true);
    bool defined = lane_of(wave.vgpr_defined[from], lane);
    for (u32 i = 0; i < 4; i++) defined &= bool(machine.lds.defined[address + i]);
    if (!defined) fault("POISON", wave, in, "LDS atomic on undefined bytes");
    u32 old;
    std::memcpy(&old, &machine.lds.bytes[address], 4);
    const u32 value = combine(old, wave.vgpr[from][lane]);
    std::memcpy(&machine.lds.bytes[address], &value, 4);
  });
  issue(wave, LDS_QUEUE, Access::lds, true);
}

}  // namespace

#define READ(names, bytes, extend) INSTRUCTION(names, { read(machine, wave, in, bytes, extend); })
READ("ds_read_b32 ds_load_b32", 4, Extend::none)
READ("ds_read_b64 ds_load_b64", 8, Extend::none)
READ("ds_read_b96 ds_load_b96", 12, Extend::none)
READ("ds_read_b128 ds_load_b128", 16, Extend::none)
READ("ds_read_u8 ds_load_u8", 1, Extend::u8)
READ("ds_read_i8 ds_load_i8", 1, Extend::i8)
READ("ds_read_u16 ds_load_u16", 2, Extend::u16)
READ("ds_read_u8_d16 ds_load_u8_d16", 1, Extend::low_half)
READ("ds_read_u8_d16_hi ds_load_u8_d16_hi", 1, Extend::high_half)
READ("ds_read_u16_d16 ds_load_u16_d16", 2, Extend::low_half)
READ("ds_read_u16_d16_hi ds_load_u16_d16_hi", 2, Extend::high_half)
INSTRUCTION("ds_read2_b32 ds_load_2addr_b32", { read(machine, wave, in, 4, Extend::none, 1); })
INSTRUCTION("ds_read2_b64 ds_load_2addr_b64", { read(machine, wave, in, 8, Extend::none, 1); })
INSTRUCTION("ds_read2st64_b32 ds_load_2addr_stride64_b32", { read(machine, wave, in, 4, Extend::none, 64); })
INSTRUCTION("ds_read2st64_b64 ds_load_2addr_stride64_b64", { read(machine, wave, in, 8, Extend::none, 64); })
#define WRITE(names, bytes, high_half) INSTRUCTION(names, { write(machine, wave, in, bytes, high_half); })
WRITE("ds_write_b32 ds_store_b32", 4, false)
WRITE("ds_write_b64 ds_store_b64", 8, false)
WRITE("ds_write_b96 ds_store_b96", 12, false)
WRITE("ds_write_b128 ds_store_b128", 16, false)
WRITE("ds_write_b8 ds_store_b8", 1, false)
WRITE("ds_write_b16 ds_store_b16", 2, false)
WRITE("ds_write_b16_d16_hi ds_store_b16_d16_hi", 2, true)
INSTRUCTION("ds_write2_b32 ds_store_2addr_b32", { write(machine, wave, in, 4, false, 1); })
INSTRUCTION("ds_write2_b64 ds_store_2addr_b64", { write(machine, wave, in, 8, false, 1); })
INSTRUCTION("ds_write2st64_b32 ds_store_2addr_stride64_b32", { write(machine, wave, in, 4, false, 64); })
INSTRUCTION("ds_write2st64_b64 ds_store_2addr_stride64_b64", { write(machine, wave, in, 8, false, 64); })
INSTRUCTION("ds_add_u32", { combined(machine, wave, in, [](u32 old, u32 value) { return old + value; }); })
INSTRUCTION("ds_add_f32", {
  combined(machine, wave, in, [](u32 old, u32 value) { return bits_of(as_float(old) + as_float(value)); });
})

}  // namespace amdgcn
