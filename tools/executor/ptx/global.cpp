// SPDX-License-Identifier: MIT
// Races in global memory. PTX ISA 9.0, "Memory Consistency Model": release and acquire patterns, morally strong operations.
//
// Blocks know of each other by what one acquires at an address where others released. A kernel that acquires nothing has
// no such order: no block may read what another wrote. The last write of two bytes counts, and reads are not kept: that a
// block overwrites what another still reads is not seen.
#include "machine.h"

namespace ptx {

namespace {

std::vector<Written>& writes(Machine& machine, u64 address) {
  std::vector<Written>& all = machine.global.by_allocation[address >> 36];
  if (all.empty()) all.resize(allocations()[(address >> 36) - 1].bytes.size() / 2 + 2);
  return all;
}
u64 offset_of(u64 address) { return address & ((1ull << 36) - 1); }

u32 number_of(const Warp& warp) { return warp.block->number * 64 + u32(warp.number) + 1; }
u32 block_of(const Written& last) { return ((last.who & ~BY_ATOMIC) - 1) / 64; }
u32 warp_of(const Written& last) { return ((last.who & ~BY_ATOMIC) - 1) % 64; }

/// Tells whether the warp knows that it is written.
bool knows(const Warp& warp, const Written& last) {
  const u32 block = block_of(last), by = warp_of(last);
  if (last.epoch == NOT_DONE) return false;
  if (block == warp.block->number) return int(by) == warp.number || warp.seen.at[by] >= last.epoch;
  if (!warp.seen.blocks) return false;
  const auto found = warp.seen.blocks->find(block);
  return found != warp.seen.blocks->end() && found->second[by] >= last.epoch;
}

[[noreturn]] void race(const Warp& warp, const Instruction& in, const char* what, u64 address, const Written& last) {
  const u32 block = block_of(last);
  std::string whose = block == warp.block->number ? "of this block" : "of block " + std::to_string(block);
  if (last.who & BY_ATOMIC) whose += " by an atomic operation";
  const char* const why = last.epoch == NOT_DONE ? ": that copy is not waited for"
                          : block == warp.block->number || warp.block->kernel->waits_for_others
                              ? ", with nothing between that orders them"
                              : ", and the kernel acquires nothing";
  fault("RACE", warp, in, "%s global address %#llx that warp %u %s wrote in this launch%s", what,
        static_cast<unsigned long long>(address), warp_of(last), whose.c_str(), why);
}

}  // namespace

void global_reads(Machine& machine, const Warp& warp, const Instruction& in, u64 address, u32 bytes) {
  if (!machine.options.races || !bytes) return;
  const auto found = machine.global.by_allocation.find(address >> 36);
  if (found == machine.global.by_allocation.end()) return;
  const u64 at = offset_of(address);
  for (u64 k = at / 2; k <= (at + bytes - 1) / 2; k++) {
    const Written& last = found->second[k];
    if (last.who && !((last.who & BY_ATOMIC) && in.order) && !knows(warp, last)) race(warp, in, "reads", address, last);
  }
}

void global_wrote(Machine& machine, const Warp& warp, const Instruction& in, u64 address, u32 bytes, bool atomic,
                  bool done) {
  if (!machine.options.races) return;
  std::vector<Written>& all = writes(machine, address);
  const u64 at = offset_of(address);
  for (u64 k = at / 2; k <= (at + bytes - 1) / 2; k++) {
    Written& last = all[k];
    const bool both_atomic = (last.who & BY_ATOMIC) && atomic;
    if (last.who && !both_atomic && bytes > 1 && !knows(warp, last)) race(warp, in, "writes", address, last);
    last = {number_of(warp) | (atomic ? u32(BY_ATOMIC) : 0), done ? warp.seen.at[warp.number] : u32(NOT_DONE)};
  }
}

void global_done(Machine& machine, const Warp& warp, u64 address, u32 bytes) {
  if (!machine.options.races || !bytes) return;
  std::vector<Written>& all = writes(machine, address);
  const u64 at = offset_of(address);
  for (u64 k = at / 2; k <= (at + bytes - 1) / 2; k++)
    if ((all[k].who & ~BY_ATOMIC) == number_of(warp) && all[k].epoch == NOT_DONE)
      all[k].epoch = warp.seen.at[warp.number];
}

void global_releases(Machine& machine, Warp& warp, u64 address) {
  if (!machine.options.races) return;
  machine.global.released[address].join_blocks(warp.seen.with_own(warp.block->number));
  warp.seen.at[warp.number]++;
}

void global_acquires(Machine& machine, Warp& warp, u64 address) {
  const auto found = machine.global.released.find(address);
  if (found == machine.global.released.end()) return;
  warp.seen.join_all(found->second.blocks, warp.block->number);
}

}  // namespace ptx
