// SPDX-License-Identifier: MIT
// Global memory by vector, scalar, flat and buffer instructions, atomics, and the private memory of lanes.
#include "memory.h"

namespace amdgcn {

namespace {

constexpr u64 kOffsetMask = (1ull << SLOT_SHIFT) - 1;

/// The block of an address. lane -1: a scalar access.
Block& block_of(Machine& machine, const Wave& wave, const Instruction& in, u64 address, int bytes, u64& offset,
                int lane) {
  const u64 slot = address >> SLOT_SHIFT;
  offset = address & kOffsetMask;
  const bool known = slot > 0 && slot <= machine.blocks.size();
  if (known && offset + u64(bytes) <= machine.blocks[slot - 1].size) return machine.blocks[slot - 1];
  fault("OOB", wave, in, "lane %d address %llx, %d bytes, outside (buffer %s, %lld past its end)", lane,
        (unsigned long long)address, bytes, known ? machine.blocks[slot - 1].name : "?",
        known ? (long long)(offset - machine.blocks[slot - 1].size) : 0LL);
}

u32 read_global(Machine& machine, const Wave& wave, const Instruction& in, u64 address, int bytes, bool& defined,
                int lane) {
  u64 at;
  const Block& block = block_of(machine, wave, in, address, bytes, at, lane);
  u32 value = 0;
  std::memcpy(&value, block.bytes + at, size_t(bytes));
  defined &= all_marked(block.defined + at, bytes);
  if (machine.options.races && !block.writer.empty())
    for (u64 byte = at; byte < at + u64(bytes); byte++) {
      const u32 writer = block.writer[byte];
      if (writer && writer != wave.global_number && writer != ATOMIC_WRITER)
        fault("RACE", wave, in, "%s+%llu read, written by another wave in this launch", block.name,
              (unsigned long long)at);
    }
  return value;
}

void write_global(Machine& machine, const Wave& wave, const Instruction& in, u64 address, int bytes, u32 value,
                  int lane) {
  u64 at;
  Block& block = block_of(machine, wave, in, address, bytes, at, lane);
  if (block.read_only) fault("OOB", wave, in, "store to the read-only buffer %s", block.name);
  std::memcpy(block.bytes + at, &value, size_t(bytes));
  std::memset(&block.defined[at], 1, size_t(bytes));
  if (!machine.options.races) return;
  if (!block.writer.empty())
    for (u64 byte = at; byte < at + u64(bytes); byte++)
      if (block.writer[byte] && block.writer[byte] != wave.global_number)
        fault("RACE", wave, in, "%s+%llu written by two waves", block.name, (unsigned long long)at);
  block.note_writer(at, u64(bytes), wave.global_number);
}

/// Addresses of global and flat instructions: a vector of them, or a scalar base and 32-bit offsets.
struct Addresses { u64 x[64]; };
Addresses addresses(Wave& wave, const Instruction& in, int vector, int scalar) {
  Addresses a;
  u64 base = 0, defined = ~0ull;
  const bool has_base = scalar >= 0 && in.operand[scalar].kind == Kind::sgpr;
  if (has_base) {
    base = read_scalar64(wave, in, in.operand[scalar], defined);
    if (~defined) fault("POISON", wave, in, "undefined scalar base");
  }
  base += u64(i64(in.offset));
  Lanes room_low, room_high;
  if (in.operand[vector].kind != Kind::vgpr) {
    each_lane([&](int lane) { a.x[lane] = base; });
    return a;
  }
  const u32* low = read_vector(wave, in, in.operand[vector], 0, Type::u32, room_low, defined);
  const u32* high = nullptr;
  if (!has_base) high = read_vector(wave, in, in.operand[vector], 1, Type::u32, room_high, defined);
  each_lane([&](int lane) { a.x[lane] = base + low[lane] + (high ? u64(high[lane]) << 32 : 0); });
  if (wave.exec() & ~defined)
    fault("POISON", wave, in, "address undefined in lanes %016llx", (unsigned long long)(wave.exec() & ~defined));
  return a;
}

bool is_flat(const Instruction& in) { return in.mnemonic[0] == 'f'; }
constexpr int kBothQueues = 9;  // flat counts on two queues, so nothing is in order with it

void load(Machine& machine, Wave& wave, const Instruction& in, int bytes, Extend extend) {
  if (in.lds) fault("DECODE", wave, in, "a load to LDS");
  const bool flat = is_flat(in);
  const Addresses at = addresses(wave, in, 1, flat ? -1 : 2);
  const int to = vector_index(wave, in), count = words(bytes);
  for (int i = 0; i < count; i++) before_load_vgpr(wave, in, to + i, flat ? kBothQueues : int(LOADS));
  Loaded loaded(wave, to, count, extend);
  each_active(wave, [&](int lane) {
    for (int i = 0; i < count; i++) {
      bool defined = true;
      const u32 value =
          read_global(machine, wave, in, at.x[lane] + u64(4 * i), std::min(4, bytes - 4 * i), defined, lane);
      loaded.put(i, lane, value, defined);
    }
  });
  issue(wave, LOADS, flat ? Access::flat : Access::load, false, to, count);
  if (flat) issue(wave, LDS_QUEUE, Access::flat, false, to, count);
}

void check_stored(const Wave& wave, const Instruction& in, int from, int count) {
  for (int i = 0; i < count; i++) {
    before_read_vgpr(wave, in, from + i);
    const u64 poisoned = wave.exec() & ~wave.vgpr_defined[from + i];
    if (poisoned)
      fault("POISON", wave, in, "storing undefined v%d, lanes %016llx", from + i, (unsigned long long)poisoned);
  }
}

void store(Machine& machine, Wave& wave, const Instruction& in, int bytes, bool high_half) {
  const bool flat = is_flat(in);
  const Addresses at = addresses(wave, in, 0, flat ? -1 : 2);
  const int from = vector_index(wave, in, 1), count = words(bytes);
  check_stored(wave, in, from, count);
  each_active(wave, [&](int lane) {
    for (int i = 0; i < count; i++) {
      const u32 value = wave.vgpr[from + i][lane] >> (high_half ? 16 : 0);
      write_global(machine, wave, in, at.x[lane] + u64(4 * i), std::min(4, bytes - 4 * i), value, lane);
    }
  });
  issue(wave, wave.queue_of[STORES], Access::store, true);
  if (flat) issue(wave, LDS_QUEUE, Access::flat, true);
}

/// value = combine(old, operand) on 4 bytes, exempt from the race check among atomics.
template <class Combine> void atomic(Machine& machine, Wave& wave, const Instruction& in, Combine combine) {
  const bool returns = in.operands == 4 || (in.glc && in.operands >= 3 && in.operand[2].kind == Kind::vgpr);
  const int vector = returns ? 1 : 0;
  const Addresses at = addresses(wave, in, vector, vector + 2);
  const int from = vector_index(wave, in, vector + 1);
  check_stored(wave, in, from, 1);
  each_active(wave, [&](int lane) {
    u64 offset;
    Block& block = block_of(machine, wave, in, at.x[lane], 4, offset, lane);
    u32 old;
    std::memcpy(&old, block.bytes + offset, 4);
    for (u64 i = 0; i < 4; i++)
      if (!block.defined[offset + i]) fault("POISON", wave, in, "atomic on undefined memory");
    const u32 value = combine(old, wave.vgpr[from][lane]);
    std::memcpy(block.bytes + offset, &value, 4);
    block.note_writer(offset, 4, ATOMIC_WRITER);
    if (returns) put_loaded(wave, in.operand[0].index, lane, old, Extend::none, true);
  });
  if (returns)
    issue(wave, LOADS, Access::load, false, in.operand[0].index, 1);
  else
    issue(wave, wave.queue_of[STORES], Access::store, true);
}

void scalar_load(Machine& machine, Wave& wave, const Instruction& in, int count, u32 mask = ~0u) {
  u64 defined = ~0ull;
  u32 offset_defined = ~0u;
  const u64 base = read_scalar64(wave, in, in.operand[1], defined);
  i64 offset = in.offset;
  if (in.operands > 2 && in.operand[2].kind == Kind::immediate)
    offset += i32(in.operand[2].bits);
  else if (in.operands > 2 && in.operand[2].kind != Kind::null)
    offset += read_scalar(wave, in, in.operand[2], 0, offset_defined);
  if (~defined || offset_defined != ~0u) fault("POISON", wave, in, "undefined scalar address");
  for (int i = 0; i < count; i++) {
    bool is_defined = true;
    const u32 value = read_global(machine, wave, in, base + u64(offset) + u64(4 * i), 4, is_defined, -1);
    write_scalar(wave, in, in.operand[0], i, value & mask, is_defined ? ~0u : 0);
  }
  issue(wave, wave.queue_of[SCALARS], Access::scalar, false, 0, 0, in.operand[0].index, count);
}

/// A word of a lane's private memory.
void check_private(const Wave& wave, const Instruction& in, i64 offset, int bytes) {
  if (offset < 0 || offset + bytes > i64(wave.scratch_bytes))
    fault("OOB", wave, in, "private memory, offset %lld of %u", (long long)offset, wave.scratch_bytes);
}
void private_word(Wave& wave, const Instruction& in, int lane, i64 offset, int bytes, int vgpr, bool is_store,
                  Extend extend = Extend::none) {
  check_private(wave, in, offset, bytes);
  const size_t at = size_t(lane) * wave.scratch_bytes + size_t(offset);
  if (is_store) {
    std::memcpy(&wave.scratch[at], &wave.vgpr[vgpr][lane], size_t(bytes));
    std::memset(&wave.scratch_defined[at], lane_of(wave.vgpr_defined[vgpr], lane), size_t(bytes));
    return;
  }
  u32 value = 0;
  bool defined = true;
  std::memcpy(&value, &wave.scratch[at], size_t(bytes));
  for (int i = 0; i < bytes; i++) defined &= bool(wave.scratch_defined[at + size_t(i)]);
  put_loaded(wave, vgpr, lane, value, extend, defined);
}

void finish(Wave& wave, bool is_store, int vgpr, int count) {
  if (is_store)
    issue(wave, wave.queue_of[STORES], Access::store, true);
  else
    issue(wave, LOADS, Access::load, false, vgpr, count);
}

/// Raw buffers of stride 0: an offset past num_records reads 0 and stores nothing, word by word. The private segment
/// buffer of gfx90a is one of PRIVATE_SLOT.
void buffer(Machine& machine, Wave& wave, const Instruction& in, int bytes, Extend extend, bool is_store,
            bool high_half) {
  if (in.idxen || in.lds) fault("DECODE", wave, in, "a buffer access with idxen or to LDS");
  u32 descriptor[4], scalar_defined = ~0u;
  for (int i = 0; i < 4; i++) descriptor[i] = read_scalar(wave, in, in.operand[2], i, scalar_defined);
  const u32 scalar_offset = read_scalar(wave, in, in.operand[3], 0, scalar_defined);
  if (scalar_defined != ~0u) fault("POISON", wave, in, "undefined buffer descriptor or offset");
  if (descriptor[1] >> 16 & 0x3fff) fault("DECODE", wave, in, "a buffer with a stride");
  const u64 base = descriptor[0] | u64(descriptor[1] & 0xffff) << 32, records = descriptor[2];
  const bool is_private = base >> SLOT_SHIFT == PRIVATE_SLOT;
  u64 defined = ~0ull;
  Lanes room, offsets = {};
  if (in.offen) {  // copied: the destination may be the register of the offset
    const u32* values = read_vector(wave, in, in.operand[1], 0, Type::u32, room, defined);
    std::memcpy(offsets.x, values, sizeof offsets.x);
  }
  if (wave.exec() & ~defined) fault("POISON", wave, in, "undefined buffer offset");
  const int vgpr = vector_index(wave, in), count = words(bytes);
  for (int i = 0; i < count; i++)
    is_store ? before_read_vgpr(wave, in, vgpr + i) : before_load_vgpr(wave, in, vgpr + i, LOADS);
  if (is_store && !is_private) check_stored(wave, in, vgpr, count);
  each_active(wave, [&](int lane) {
    for (int i = 0; i < count; i++) {
      const int size = std::min(4, bytes - 4 * i);
      const u64 offset = u64(offsets.x[lane]) + u64(in.offset) + u64(4 * i) + scalar_offset;
      if (is_private) {
        private_word(wave, in, lane, i64(offset), size, vgpr + i, is_store, extend);
        continue;
      }
      const bool outside = offset + u64(size) > records;
      if (is_store) {
        const u32 value = wave.vgpr[vgpr + i][lane] >> (high_half ? 16 : 0);
        if (!outside) write_global(machine, wave, in, base + offset, size, value, lane);
      } else {
        bool is_defined = true;
        const u32 value = outside ? 0 : read_global(machine, wave, in, base + offset, size, is_defined, lane);
        put_loaded(wave, vgpr + i, lane, value, extend, is_defined);
      }
    }
  });
  finish(wave, is_store, vgpr, count);
}

void scratch(Wave& wave, const Instruction& in, int bytes, bool is_store) {
  const int address = is_store ? 0 : 1, vgpr = vector_index(wave, in, is_store ? 1 : 0), count = words(bytes);
  u32 base_defined = ~0u;
  i64 base = in.offset;
  if (in.operand[2].kind == Kind::sgpr) base += i32(read_scalar(wave, in, in.operand[2], 0, base_defined));
  if (base_defined != ~0u) fault("POISON", wave, in, "undefined scratch base");
  u64 defined = ~0ull;
  Lanes room, offsets = {};
  if (in.operand[address].kind == Kind::vgpr) {
    const u32* values = read_vector(wave, in, in.operand[address], 0, Type::u32, room, defined);
    std::memcpy(offsets.x, values, sizeof offsets.x);
  }
  if (wave.exec() & ~defined) fault("POISON", wave, in, "undefined scratch address");
  for (int i = 0; i < count; i++)
    is_store ? before_read_vgpr(wave, in, vgpr + i) : before_load_vgpr(wave, in, vgpr + i, LOADS);
  each_active(wave, [&](int lane) {
    for (int i = 0; i < count; i++)
      private_word(wave, in, lane, base + i32(offsets.x[lane]) + 4 * i, 4, vgpr + i, is_store);
  });
  finish(wave, is_store, vgpr, count);
}

}  // namespace

#define LOAD(names, bytes, extend) INSTRUCTION(names, { load(machine, wave, in, bytes, extend); })
LOAD("global_load_dword flat_load_dword global_load_b32 flat_load_b32", 4, Extend::none)
LOAD("global_load_dwordx2 flat_load_dwordx2 global_load_b64 flat_load_b64", 8, Extend::none)
LOAD("global_load_dwordx3 flat_load_dwordx3 global_load_b96 flat_load_b96", 12, Extend::none)
LOAD("global_load_dwordx4 flat_load_dwordx4 global_load_b128 flat_load_b128", 16, Extend::none)
LOAD("global_load_ubyte flat_load_ubyte global_load_u8 flat_load_u8", 1, Extend::u8)
LOAD("global_load_sbyte flat_load_sbyte global_load_i8 flat_load_i8", 1, Extend::i8)
LOAD("global_load_ushort flat_load_ushort global_load_u16 flat_load_u16", 2, Extend::u16)
LOAD("global_load_sshort flat_load_sshort global_load_i16 flat_load_i16", 2, Extend::i16)
LOAD("global_load_ubyte_d16 flat_load_ubyte_d16 global_load_d16_u8 flat_load_d16_u8", 1, Extend::low_half)
LOAD("global_load_short_d16 flat_load_short_d16 global_load_d16_b16 flat_load_d16_b16", 2, Extend::low_half)
LOAD("global_load_short_d16_hi flat_load_short_d16_hi global_load_d16_hi_b16 flat_load_d16_hi_b16", 2,
     Extend::high_half)
#define STORE(names, bytes, high_half) INSTRUCTION(names, { store(machine, wave, in, bytes, high_half); })
STORE("global_store_dword flat_store_dword global_store_b32 flat_store_b32", 4, false)
STORE("global_store_dwordx2 flat_store_dwordx2 global_store_b64 flat_store_b64", 8, false)
STORE("global_store_dwordx3 flat_store_dwordx3 global_store_b96 flat_store_b96", 12, false)
STORE("global_store_dwordx4 flat_store_dwordx4 global_store_b128 flat_store_b128", 16, false)
STORE("global_store_short flat_store_short global_store_b16 flat_store_b16", 2, false)
STORE("global_store_short_d16_hi flat_store_short_d16_hi global_store_d16_hi_b16 flat_store_d16_hi_b16", 2, true)
STORE("global_store_byte flat_store_byte global_store_b8 flat_store_b8", 1, false)
STORE("global_store_byte_d16_hi flat_store_byte_d16_hi global_store_d16_hi_b8 flat_store_d16_hi_b8", 1, true)
#define ATOMIC(names, expression)                                                                                      \
  INSTRUCTION(names, { atomic(machine, wave, in, [](u32 old, u32 value) -> u32 { return (expression); }); })
ATOMIC("global_atomic_add_f32", bits_of(as_float(old) + as_float(value)))
ATOMIC("global_atomic_add global_atomic_add_u32", old + value)
ATOMIC("global_atomic_pk_add_f16",
       to_half(from_half(old) + from_half(value)) | to_half(from_half(old >> 16) + from_half(value >> 16)) << 16)
ATOMIC("global_atomic_pk_add_bf16", to_bfloat(from_bfloat(old & 0xffff) + from_bfloat(value & 0xffff)) |
                                        to_bfloat(from_bfloat(old >> 16) + from_bfloat(value >> 16)) << 16)
INSTRUCTION("s_load_dword s_load_b32", { scalar_load(machine, wave, in, 1); })
INSTRUCTION("s_load_dwordx2 s_load_b64", { scalar_load(machine, wave, in, 2); })
INSTRUCTION("s_load_b96", { scalar_load(machine, wave, in, 3); })
INSTRUCTION("s_load_dwordx4 s_load_b128", { scalar_load(machine, wave, in, 4); })
INSTRUCTION("s_load_dwordx8 s_load_b256", { scalar_load(machine, wave, in, 8); })
INSTRUCTION("s_load_dwordx16 s_load_b512", { scalar_load(machine, wave, in, 16); })
INSTRUCTION("s_load_u16", { scalar_load(machine, wave, in, 1, 0xffff); })
INSTRUCTION("s_load_u8", { scalar_load(machine, wave, in, 1, 0xff); })
#define BUFFER_LOAD(names, bytes, extend)                                                                              \
  INSTRUCTION(names, { buffer(machine, wave, in, bytes, extend, false, false); })
BUFFER_LOAD("buffer_load_dword buffer_load_b32", 4, Extend::none)
BUFFER_LOAD("buffer_load_dwordx2 buffer_load_b64", 8, Extend::none)
BUFFER_LOAD("buffer_load_dwordx3 buffer_load_b96", 12, Extend::none)
BUFFER_LOAD("buffer_load_dwordx4 buffer_load_b128", 16, Extend::none)
BUFFER_LOAD("buffer_load_ubyte buffer_load_u8", 1, Extend::u8)
BUFFER_LOAD("buffer_load_ushort buffer_load_u16", 2, Extend::u16)
BUFFER_LOAD("buffer_load_short_d16 buffer_load_d16_b16", 2, Extend::low_half)
BUFFER_LOAD("buffer_load_short_d16_hi buffer_load_d16_hi_b16", 2, Extend::high_half)
#define BUFFER_STORE(names, bytes, high_half)                                                                          \
  INSTRUCTION(names, { buffer(machine, wave, in, bytes, Extend::none, true, high_half); })
BUFFER_STORE("buffer_store_dword buffer_store_b32", 4, false)
BUFFER_STORE("buffer_store_dwordx2 buffer_store_b64", 8, false)
BUFFER_STORE("buffer_store_dwordx3 buffer_store_b96", 12, false)
BUFFER_STORE("buffer_store_dwordx4 buffer_store_b128", 16, false)
BUFFER_STORE("buffer_store_short buffer_store_b16", 2, false)
BUFFER_STORE("buffer_store_short_d16_hi buffer_store_d16_hi_b16", 2, true)
BUFFER_STORE("buffer_store_byte buffer_store_b8", 1, false)
INSTRUCTION("scratch_load_dword scratch_load_b32", { scratch(wave, in, 4, false); })
INSTRUCTION("scratch_load_dwordx2 scratch_load_b64", { scratch(wave, in, 8, false); })
INSTRUCTION("scratch_load_dwordx3 scratch_load_b96", { scratch(wave, in, 12, false); })
INSTRUCTION("scratch_load_dwordx4 scratch_load_b128", { scratch(wave, in, 16, false); })
INSTRUCTION("scratch_store_dword scratch_store_b32", { scratch(wave, in, 4, true); })
INSTRUCTION("scratch_store_dwordx2 scratch_store_b64", { scratch(wave, in, 8, true); })
INSTRUCTION("scratch_store_dwordx3 scratch_store_b96", { scratch(wave, in, 12, true); })
INSTRUCTION("scratch_store_dwordx4 scratch_store_b128", { scratch(wave, in, 16, true); })

}  // namespace amdgcn
