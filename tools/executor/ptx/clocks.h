// SPDX-License-Identifier: MIT
// Causality order: vector clocks of warps and mbarriers, and the last accesses of every granule of shared memory.
//
// PTX ISA, "Memory Consistency Model": causality order, and "Proxies": what one proxy wrote is seen through another only
// behind a proxy fence. A warp is one agent; so is each mbarrier, by which the copies that it counts are known. Within a warp a lane
// knows of the others' accesses behind bar.warp.sync, a barrier or the end of a phase alone; of what products and bulk copies read,
// which is an agent of its own for each warp (FETCHES), behind the wait for their group, which each lane executes. What other blocks of
// a cluster store is of one agent (REMOTE), whose epochs are the phases of the cluster's barrier.
#pragma once
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <vector>

#include "formats.h"

namespace ptx {

using namespace executor;

enum : int {
  MOST_WARPS = 32,
  MOST_MBARRIERS = 64,
  FETCHES = MOST_WARPS + MOST_MBARRIERS,
  REMOTE = FETCHES + MOST_WARPS,
  AGENTS
};

/// Clocks of blocks by their numbers, as far as global memory and barriers of clusters have made them known.
using Blocks = std::map<u32, std::array<u32, AGENTS>>;

struct Clock {
  u32 at[AGENTS] = {};
  std::shared_ptr<const Blocks> blocks;  // of others; none: nothing
  void join(const Clock& other) {
    for (int k = 0; k < AGENTS; k++) at[k] = std::max(at[k], other.at[k]);
    if (other.blocks && other.blocks != blocks) join_blocks(other.blocks);
  }
  void join_blocks(const std::shared_ptr<const Blocks>& more);
  /// Clocks of a clock of block `own`: all blocks' with its own, and the same for a clock of block `target`.
  [[nodiscard]] std::shared_ptr<Blocks> with_own(u32 own) const;
  [[nodiscard]] Clock of_block(u32 own, u32 target) const;
  /// All blocks' clocks, into a clock of block `own`.
  void join_all(const std::shared_ptr<const Blocks>& all, u32 own);
};

enum : int { ALL_LANES = 32 };  // an access of the warp as one

enum : u32 { IN_FLIGHT = 0x80000000u };  // | group: an asynchronous read that nobody has waited for

/// The last write of a granule, and its reads by warp.
struct Races {
  int shift = 2, warps = 0;
  bool on = true;
  std::vector<u32> write;    // epoch of the writer
  std::vector<u8> writer;    // agent
  std::vector<u8> generic;   // through the generic proxy
  std::vector<u32> read;     // by granule and warp
  std::vector<u32> fetched;  // by 16 bytes and warp: asynchronous reads
  struct Within {
    u32 syncs, step;
    u8 warp, lane;
  };
  std::vector<Within> wrote, looked;  // the last write and the last reads, by lane
  void start(u32 bytes, int granule_shift, int count) {
    shift = granule_shift, warps = count;
    const size_t granules = (bytes >> shift) + 1;
    write.assign(granules, 0);
    writer.assign(granules, 0);
    generic.assign(granules, 0);
    read.assign(granules * size_t(count), 0);
    wrote.assign(granules, {});
    looked.assign(granules, {});
    fetched.assign((bytes / 16 + 1) * size_t(count), 0);
  }
};

struct Warp;
struct Block;
struct Instruction;

/// Notes of accesses; each throws RACE, or PROXY where a proxy fence is missing.
void note_read(Warp&, const Instruction&, u32 address, u32 bytes, int lane);
void note_write(Warp&, const Instruction&, u32 address, u32 bytes, int lane);
/// Notes a write to the shared memory of a block of the warp's cluster, known by the next phase of its barrier.
void note_remote(Warp&, const Instruction&, Block& target, u32 address, u32 bytes);
/// Notes a read by the async proxy, from now until group `tag` is waited for (note_fetched).
void note_fetch(Warp&, const Instruction&, u32 address, u32 bytes, u32 tag);
void note_fetched(Warp&, u32 address, u32 bytes, u32 tag);
/// Notes a write by TMA, known by the next phase of an mbarrier. agent, epoch: of the barrier.
void note_copied(Warp&, const Instruction&, u32 address, u32 bytes, int agent, u32 epoch, bool async_proxy);

}  // namespace ptx
