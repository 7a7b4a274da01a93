// SPDX-License-Identifier: MIT
// PTX ISA 9.0: ld, st, atom, red ("Data Movement", "Parallel Synchronization"): bounds, alignment, what was written, and races.
#include <cstring>

#include "lanes.h"

namespace ptx {

u8* global_bytes(const Warp& warp, const Instruction& in, u64 address, u32 bytes, u8** defined) {
  size_t offset;
  Allocation* found = find(reinterpret_cast<const void*>(address), bytes, offset);
  if (!found) {
    Allocation* near = find(reinterpret_cast<const void*>(address & ~((1ull << 36) - 1)), 0, offset);
    if (near && near->reserved)
      fault("OOB", warp, in, "global address %#llx, %u bytes, is %llu bytes into allocation %llu, which has %zu",
            static_cast<unsigned long long>(address), bytes,
            static_cast<unsigned long long>(address & ((1ull << 36) - 1)),
            static_cast<unsigned long long>(address >> 36), near->bytes.size());
    fault("OOB", warp, in, "global address %#llx, %u bytes, lies in no allocation",
          static_cast<unsigned long long>(address), bytes);
  }
  if (defined) *defined = found->defined.data() + offset;
  return found->bytes.data() + offset;
}

namespace {

struct Place {
  u8* bytes;
  u8* defined;  // null: all are
};

u64 address_of(const Warp& warp, const Operand& base, i64 offset, int lane) {
  const u64 at = base.kind == Kind::constant ? base.constant64[lane]
                 : base.bytes == 8           ? source<u64>(warp, base)[lane]
                                             : source<u32>(warp, base)[lane];
  return at + u64(offset);
}

/// The state space that an address lies in: a generic one says it by its window ("Generic Addressing").
int space_of(const Instruction& in, u64 address) {
  if (in.space != GENERIC) return in.space;
  return address >= kConstWindow ? CONST : address >= kParamWindow ? PARAM : address >= kSharedWindow ? SHARED : GLOBAL;
}

Place place(Machine& machine, Warp& warp, const Instruction& in, u64 address, u32 bytes, bool writes, int lane) {
  switch (space_of(in, address)) {
    case SHARED: {
      const u32 at = u32(address >= kSharedWindow ? address - kSharedWindow : address);
      check_shared(warp, in, at, bytes);
      if (writes)
        note_write(warp, in, at, bytes, lane);
      else
        note_read(warp, in, at, bytes, lane);
      return {&warp.block->shared[at], &warp.block->shared_defined[at]};
    }
    case PARAM: {
      const u64 at = address - kParamWindow;
      if (at > machine.parameters.size() || at + bytes > machine.parameters.size())
        fault("OOB", warp, in, "parameter offset %llu, %u bytes, of %zu", static_cast<unsigned long long>(at), bytes,
              machine.parameters.size());
      return {&machine.parameters[at], nullptr};
    }
    case CONST: {
      const u64 at = address - kConstWindow;
      if (at + bytes > machine.module.const_bytes)
        fault("OOB", warp, in, "constant offset %llu", static_cast<unsigned long long>(at));
      return {&machine.module.const_memory[at], nullptr};
    }
    default: {
      if (address % bytes)
        fault("ALIGN", warp, in, "global address %#llx of %u bytes is not aligned",
              static_cast<unsigned long long>(address), bytes);
      Place made;
      made.bytes = global_bytes(warp, in, address, bytes, &made.defined);
      if (writes)
        global_wrote(machine, warp, in, address, bytes, in.order != 0);
      else
        global_reads(machine, warp, in, address, bytes);
      if (in.order & RELEASES) global_releases(machine, warp, address);
      if (in.order & ACQUIRES) global_acquires(machine, warp, address);
      return made;
    }
  }
}

/// Item k of operand i, which is a list or a single one.
const Operand& part(const Instruction& in, int i, int k) {
  const Operand& one = in.operand[i];
  return one.kind == Kind::list ? in.items[size_t(one.first + k)] : one;
}

Step load(Machine& machine, Warp& warp, const Instruction& in, u32 lanes) {
  const Operand &where = in.operand[1], &base = in.items[size_t(where.first)];
  must_know(warp, in, base, lanes, "the address");
  const u32 whole = u32(in.bytes * in.parts);
  u64 addresses[32];  // the target may be the address's own register
  each_lane(lanes, [&](int k) { addresses[k] = address_of(warp, base, where.immediate, k); });
  u32 are[4] = {};
  each_lane(lanes, [&](int k) {
    const Place from = place(machine, warp, in, addresses[k], whole, false, k);
    for (int p = 0; p < in.parts; p++) {
      const Operand& to = part(in, 0, p);
      if (to.kind == Kind::none) continue;
      const u8* bytes = from.bytes + p * in.bytes;
      u64 value = 0;
      std::memcpy(&value, bytes, size_t(in.bytes));
      if (in.a && in.bytes < 8 && value >> (8 * in.bytes - 1)) value |= ~0ull << (8 * in.bytes);  // signed
      if (to.bytes == 8)
        target<u64>(warp, to)[k] = value;
      else
        target<u32>(warp, to)[k] = to.bytes == 2 ? u32(u16(value)) : u32(value);
      bool all = true;
      if (from.defined)
        for (int b = 0; b < in.bytes; b++) all &= from.defined[p * in.bytes + b] != 0;
      are[p] |= u32(all) << k;
    }
  });
  for (int p = 0; p < in.parts; p++)
    if (part(in, 0, p).kind != Kind::none) mark(warp, part(in, 0, p), lanes, are[p]);
  return Step::next;
}

Step store(Machine& machine, Warp& warp, const Instruction& in, u32 lanes) {
  const Operand &where = in.operand[0], &base = in.items[size_t(where.first)];
  must_know(warp, in, base, lanes, "the address");
  const u32 whole = u32(in.bytes * in.parts);
  u32 outside = 0;  // lanes whose bytes go where all must be known
  each_lane(lanes,
            [&](int k) { outside |= u32(space_of(in, address_of(warp, base, where.immediate, k)) != SHARED) << k; });
  for (int p = 0; p < in.parts; p++) must_know(warp, in, part(in, 1, p), outside, "what is stored,");
  each_lane(lanes, [&](int k) {
    const Place to = place(machine, warp, in, address_of(warp, base, where.immediate, k), whole, true, k);
    for (int p = 0; p < in.parts; p++) {
      const Operand& from = part(in, 1, p);
      u64 value = in.bytes == 8     ? source<u64>(warp, from)[k]
                  : from.bytes == 8 ? source<u64>(warp, from)[k]
                                    : source<u32>(warp, from)[k];
      std::memcpy(to.bytes + p * in.bytes, &value, size_t(in.bytes));
      if (to.defined) std::memset(to.defined + p * in.bytes, int(known(warp, from) >> k & 1), size_t(in.bytes));
    }
  });
  return Step::next;
}

Step map_cluster(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  must_know(warp, in, in.operand[1], lanes, "the address");
  must_know(warp, in, in.operand[2], lanes, "the rank");
  u32 made[32];
  each_lane(lanes, [&](int k) {
    const u32 address = source<u32>(warp, in.operand[1])[k], rank = source<u32>(warp, in.operand[2])[k];
    if (rank >= warp.block->cluster->blocks.size())
      fault("OOB", warp, in, "rank %u of a cluster of %zu blocks", rank, warp.block->cluster->blocks.size());
    made[k] = address + ((rank + 1) << kRankShift);
  });
  each_lane(lanes, [&](int k) { target<u32>(warp, in.operand[0])[k] = made[k]; });
  mark(warp, in.operand[0], lanes, ~0u);
  return Step::next;
}
Step store_cluster(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const Operand &where = in.operand[0], &base = in.items[size_t(where.first)];
  must_know(warp, in, base, lanes, "the address");
  each_lane(lanes, [&](int k) {
    const u32 mapped = u32(address_of(warp, base, where.immediate, k)), rank = mapped >> kRankShift;
    const u32 address = mapped & kInBlock, whole = u32(in.bytes * in.parts);
    Block* const block = rank == 0 ? warp.block : warp.block->cluster->blocks[rank - 1];
    if (!block) fault("OOB", warp, in, "stores to shared memory of a block that has left");
    check_shared(warp, in, address, whole);
    note_remote(warp, in, *block, address, whole);
    for (int p = 0; p < in.parts; p++) {
      const Operand& from = part(in, 1, p);
      const u32 value = source<u32>(warp, from)[k];
      std::memcpy(&block->shared[address + u32(p * in.bytes)], &value, size_t(in.bytes));
      std::memset(&block->shared_defined[address + u32(p * in.bytes)], int(known(warp, from) >> k & 1),
                  size_t(in.bytes));
    }
  });
  return Step::next;
}

enum Atomic : int { A_ADD, A_INC, A_EXCH, A_MAX, A_MIN, A_CAS, A_OR, A_AND };

Step atomic(Machine& machine, Warp& warp, const Instruction& in, u32 lanes) {
  const int first = in.b;  // 1: atom, with a target
  const Operand &where = in.operand[first], &base = in.items[size_t(where.first)];
  must_know(warp, in, base, lanes, "the address");
  for (int p = 0; p < in.parts; p++) must_know(warp, in, part(in, first + 1, p), lanes, "what is combined,");
  u32 made[32];
  each_lane(lanes, [&](int k) {
    const u64 address = address_of(warp, base, where.immediate, k);
    const u32 whole = u32(in.bytes * in.parts);
    if (address % whole)
      fault("ALIGN", warp, in, "address %#llx of %u bytes is not aligned", static_cast<unsigned long long>(address),
            whole);
    u8* defined = nullptr;
    u8* bytes = global_bytes(warp, in, address, whole, &defined);
    for (u32 b = 0; b < whole; b++)
      if (!defined[b])
        fault("POISON", warp, in, "combines with memory that nobody wrote, at %#llx",
              static_cast<unsigned long long>(address));
    global_wrote(machine, warp, in, address, whole, true);
    if (in.order & RELEASES) global_releases(machine, warp, address);
    if (in.order & ACQUIRES) global_acquires(machine, warp, address);
    for (int p = 0; p < in.parts; p++) {
      const u32 value = source<u32>(warp, part(in, first + 1, p))[k];
      u32 old, now;
      std::memcpy(&old, bytes + 4 * p, 4);
      switch (in.a) {
        case A_ADD: now = in.c ? bits_of(as_float(old) + as_float(value)) : old + value; break;
        case A_INC: now = old >= value ? 0 : old + 1; break;
        case A_EXCH: now = value; break;
        case A_MAX: now = in.c ? std::max(old, value) : u32(std::max(i32(old), i32(value))); break;
        case A_OR: now = old | value; break;
        case A_AND: now = old & value; break;
        default: now = in.c ? std::min(old, value) : u32(std::min(i32(old), i32(value)));
      }
      std::memcpy(bytes + 4 * p, &now, 4);
      made[k] = old;
    }
  });
  if (first && in.operand[0].kind != Kind::none) {
    each_lane(lanes, [&](int k) { target<u32>(warp, in.operand[0])[k] = made[k]; });
    mark(warp, in.operand[0], lanes, ~0u);
  }
  return Step::next;
}

/// A hint: nothing is read.
Step prefetch(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  must_know(warp, in, in.items[size_t(in.operand[0].first)], lanes, "the address");
  return Step::next;
}

/// Order and scope of an access. What is written is seen at once here; who may look is by clocks (global.cpp).
void order(Decode& d, bool atomic) {
  const bool both = d.take("acq_rel"), acquires = both || d.take("acquire");
  const bool releases = both || (!acquires && d.take("release"));
  const bool orders = acquires || releases || d.take("relaxed") || (!atomic && d.take("volatile"));
  if (d.take("gpu") || d.take("sys") || d.take("cta")) {
    if (!orders && !atomic) d.refuse("a scope stands without an order");
  }
  d.in.order = u8((orders || atomic ? STRONG : 0) | (acquires ? ACQUIRES : 0) | (releases ? RELEASES : 0));
  if (acquires) d.kernel.waits_for_others = true;
}

/// None: the address is generic.
void space(Decode& d) {
  if (d.take("local") || d.take("shared::cluster")) d.refuse("the state space is unknown here");
  d.in.space = d.take("global")                            ? int(GLOBAL)
               : d.take("shared") || d.take("shared::cta") ? int(SHARED)
               : d.take("param")                           ? int(PARAM)
               : d.take("const")                           ? int(CONST)
                                                           : int(GENERIC);
}

/// Caching, which changes nothing here; then vectors and the type.
Type access(Decode& d) {
  d.take("nc");
  for (const char* hint : {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1::no_allocate", "L1::evict_last",
                           "L1::evict_first", "L2::128B", "L2::256B", "L2::64B"})
    d.take(hint);
  d.in.parts = d.take("v2") ? 2 : d.take("v4") ? 4 : 1;
  const Type type = type_of(d, d.next());
  if (type.kind == 'p') d.refuse("predicates lie in no memory");
  d.in.bytes = type.bytes;
  d.in.a = type.kind == 's';
  if ((d.in.space == SHARED || d.in.space == GENERIC) && type.bytes < 4)
    d.kernel.granule_shift = std::min(d.kernel.granule_shift, type.bytes == 2 ? 1 : 0);
  return type;
}

/// Values of an access may be in wider registers than it has bytes.
void held(Decode& d, int i, const Type& type) {
  Operand& one = d.in.operand[i];
  const int count = d.in.parts;
  if ((count > 1) != (one.kind == Kind::list)) d.refuse("the list must have as many values as the vector");
  for (int p = 0; p < count; p++) {
    if (one.kind == Kind::list && one.count != count) d.refuse("the list must have as many values as the vector");
    Operand& item = one.kind == Kind::list ? d.in.items[size_t(one.first + p)] : one;
    if (item.kind == Kind::none) continue;
    if (item.kind == Kind::lanes && item.bytes < type.bytes)
      d.refuse("the register " + item.text + " is narrower than the access");
    d.bind(item, item.kind == Kind::lanes ? item.bytes : type.bytes, false);
  }
}

}  // namespace

OPCODE("ld", {
  order(d, false);
  space(d);
  const Type type = access(d);
  d.end(2, load);
  held(d, 0, type);
  d.address(1);
});
OPCODE("prefetch", {
  if (!d.take("tensormap")) {
    if (!d.take("global")) d.refuse("the state space is unknown here");
    d.one_of({"L1", "L2"});
  }
  d.end(1, prefetch);
  d.address(0);
});
OPCODE("mapa", {
  if (!d.take("shared::cluster") || d.next() != "u32") d.refuse("it must be .shared::cluster.u32");
  d.end(3, map_cluster);
  d.value(0, 4), d.value(1, 4), d.value(2, 4);
});
OPCODE("st", {
  if (d.take("shared::cluster")) {
    d.in.space = SHARED;
    const Type type = access(d);
    if (type.bytes != 4) d.refuse("the type is unknown here");
    d.end(2, store_cluster);
    d.address(0);
    held(d, 1, type);
    return;
  }
  order(d, false);
  space(d);
  const Type type = access(d);
  d.end(2, store);
  d.address(0);
  held(d, 1, type);
});
OPCODE("atom red", {
  const bool gives = d.in.opcode.compare(0, 4, "atom") == 0;
  order(d, true);
  space(d);
  if (d.in.space != GLOBAL) d.refuse("the state space is unknown here");
  const std::string what = d.next();
  const char* const names[] = {"add", "inc", "exch", "max", "min", "cas", "or", "and"};
  d.in.a = -1;
  for (int k = 0; k < 8; k++)
    if (what == names[k] && k != A_CAS) d.in.a = k;
  if (d.in.a < 0) d.refuse("the operation ." + what + " is unknown");
  d.in.parts = d.take("v2") ? 2 : d.take("v4") ? 4 : 1;
  const Type type = type_of(d, d.next());
  if (type.bytes != 4 || (type.kind == 'f' && d.in.a != A_ADD) || (d.in.parts > 1 && type.kind != 'f'))
    d.refuse("the type is unknown here");
  d.in.bytes = 4;
  d.in.b = gives;
  d.in.c = type.kind == 'f' || type.kind == 'u';
  if (d.in.a == A_ADD) d.in.c = type.kind == 'f';
  d.end(gives ? 3 : 2, atomic);
  if (gives && d.in.operand[0].kind != Kind::none) d.value(0, 4);
  d.address(gives);
  held(d, gives + 1, type);
});

}  // namespace ptx
