// SPDX-License-Identifier: MIT
// State of a launch: blocks with their shared memory, barriers and copies under way; warps with their registers.
#pragma once
#include <deque>
#include <map>
#include <memory>

#include "allocations.h"
#include "clocks.h"
#include "program.h"

namespace ptx {

/// Lanes of a warp at one place of the program.
struct Group {
  int pc;
  u32 lanes;
  enum State : u8 { running, at_phase, at_barrier, at_cluster, converging } state = running;
  u32 barrier = 0, parity = 0;  // at_phase: which mbarrier, and the phase that must end; at_barrier: its number
};

struct Block;

/// A wgmma that was issued: what it reads when it runs.
struct Product {
  const Instruction* in;
  u64 a, b;  // descriptors
  bool add;
  u32 group;
  bool done;     // the sums are there, though nobody may look yet
  bool tainted;  // what it read was not there for it: its sums are nobody's to use
};

/// A bulk copy out of shared memory that a wait_group waits for.
struct Leaving {
  u64 to;
  u32 from, bytes, group;
  bool read, done;
};

struct Warp {
  Block* block = nullptr;
  int number = 0;
  u32 live = 0;  // lanes that have not left
  std::vector<Group> groups;
  std::unique_ptr<u8, void (*)(void*)> file{nullptr, free};
  size_t file_bytes = 0;
  std::vector<u32> predicates, defined;
  std::vector<u32> pending, inputs;  // by register: the group of the last product that sums there, or reads it
  std::vector<u32> written;          // by register: the fence count of its last write
  u32 fences = 1;                    // wgmma.fence so far
  std::deque<Product> products;
  std::vector<Product> unused;          // waited for, and no instruction has touched their sums
  std::vector<u8> unclaimed;            // by register: whether it holds such sums
  std::string taint;                    // why sums of this warp are tainted
  u32 group_open = 1, groups_done = 0;  // of wgmma
  std::deque<Leaving> leaving;
  u32 bulk_open = 1, bulk_uncommitted = 0;
  u32 copies_open = 1;  // group of cp.async
  Clock seen, proxied;  // what it knows of others; and what a proxy fence has made known to the async proxy
  Clock told;  // what relaxed arrivals at the cluster's barrier tell: what it knew at its last fence.mbarrier_init
  Group* group = nullptr;  // whose instruction runs
  int next_pc = 0;
  u32 taken = 0;  // lanes that a branch takes
  u64 executed = 0;
  u32 syncs = 1, step = 0;       // times that its lanes met; instructions so far
  u32 touching = 0, met_at = 0;  // lanes that touched shared memory since they met; the epoch when they did
  u32 registers_held = 0;        // by setmaxnreg
  u32 cluster_arrivals = 0, cluster_waits = 0;  // phases of the cluster's barrier that it came to, and waited for
  bool stored = false;  // to other blocks, and neither came to a barrier of its block nor released it since
};

/// An mbarrier object. PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
struct Mbarrier {
  u32 expected = 0, pending = 0, phase = 0;  // arrivals of a phase, those that it lacks; phases done
  i64 bytes = 0;                             // expected less arrived
  int slot = 0;                              // in clocks
  int initialiser = 0;                       // a warp, and its epoch
  u32 initialised = 0;
  Clock arriving, arriving_proxied, seen, proxied;
};

struct NamedBarrier {
  u32 threads = 0, arrived = 0, rounds = 0;
  Clock arriving, arriving_proxied, seen, proxied;
};

/// A copy by TMA that has not happened yet.
struct Copy {
  enum What : u8 { tensor, bulk_in, bulk_out, async } what;
  int warp;
  u32 to, bytes, barrier;
  u64 from, map;
  i32 at[5];
  bool adds;
  u32 group, phase;
  std::vector<u8> data;  // of bulk_out
};

/// Blocks that are resident together. Of its barrier: warps that came to this phase, phases done, and what those knew who came.
struct Cluster {
  std::vector<Block*> blocks;  // by rank; null: has left
  u32 warps = 0, arrived = 0, phase = 0;
  Clock arriving, arriving_proxied, seen, proxied;  // of no block: by their blocks alone
};

struct Block {
  std::shared_ptr<Cluster> cluster;
  u32 rank = 0;         // in it
  bool stored = false;  // as of its warps, behind a barrier of the block
  u32 id[3] = {};
  u32 number = 0;
  Kernel* kernel = nullptr;
  u32 shared_bytes = 0;  // with kSharedBegin
  std::vector<u8> shared, shared_defined;
  Races races;
  std::map<u32, Mbarrier> mbarriers;
  NamedBarrier named[16];
  std::vector<Copy> copies;
  std::vector<std::unique_ptr<Warp>> warps;
  u32 threads = 0;
  int left = 0;  // warps
};

/// The last write of this launch to two bytes of global memory.
struct Written {
  u32 who;    // block * 64 + warp + 1, and whether by an atomic operation; 0: nobody
  u32 epoch;  // of the warp
};
enum : u32 { BY_ATOMIC = 0x80000000u, NOT_DONE = ~0u };  // NOT_DONE: a bulk copy that nobody has waited for

struct GlobalWrites {
  std::map<u64, std::vector<Written>> by_allocation;
  std::unordered_map<u64, Clock> released;  // by address: what those knew who released there
};

struct Options {
  u64 seed = 1;            // 0: warps run one after the other as far as barriers let them
  u64 most = 400'000'000;  // warp instructions of a launch: more is a loop without end
  bool races = true;
};

struct Machine {
  Module module;
  Options options;
  u64 random_state = 1, executed = 0;
  u32 grid[3] = {}, threads[3] = {}, cluster = 1;
  std::vector<u8> parameters;
  GlobalWrites global;
  std::vector<std::unique_ptr<Block>> spare;
  Kernel* kernel = nullptr;

  u64 random() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
  }
};

[[noreturn]] void fault(const char* kind, const Warp&, const Instruction&, const char* format, ...)
    __attribute__((format(printf, 4, 5)));

struct Launch {
  const char* kernel;
  u32 grid[3], threads[3], shared_bytes;
  bool together;  // all blocks are resident at once
  u32 resident;   // else so many
  u32 cluster;    // blocks of a cluster, where the kernel does not say so itself; 0: as it says
};
/// Runs every block. Throws Fault at the first error. The parameters are the machine's.
void launch(Machine&, const Launch&);

/// Generic addresses: global memory's are the allocations', these windows hold the rest.
enum : u64 { kSharedWindow = 1ull << 60, kParamWindow = 1ull << 61, kConstWindow = 1ull << 62 };

/// Bytes of global memory that may be read or written. OOB otherwise.
u8* global_bytes(const Warp&, const Instruction&, u64 address, u32 bytes, u8** defined);
/// Checks of accesses; each throws RACE where another block, or another warp with nothing between, wrote in this launch (global.cpp).
void global_reads(Machine&, const Warp&, const Instruction&, u64 address, u32 bytes);
void global_wrote(Machine&, const Warp&, const Instruction&, u64 address, u32 bytes, bool atomic, bool done = true);
/// A bulk copy's writes are done.
void global_done(Machine&, const Warp&, u64 address, u32 bytes);
/// Order between blocks: what this warp knows, for those who acquire at the address.
void global_releases(Machine&, Warp&, u64 address);
void global_acquires(Machine&, Warp&, u64 address);

/// A warp as block `rank` of its cluster sees it: what it does to that block's shared memory and mbarriers is judged by that block's clocks.
Warp stand_in(const Warp&, const Instruction&, u32 rank);
/// Addresses of shared::cluster: of a block's own as it is, of rank r (r + 1) << kRankShift more.
enum : u32 { kRankShift = 24, kInBlock = (1u << kRankShift) - 1 };

/// Completes what is due of an mbarrier whose counts changed.
void settle(Block&, Mbarrier&);
Mbarrier& mbarrier_at(Warp&, const Instruction&, u32 address);
/// Does one pending copy.
void perform(Machine&, Block&, size_t which);
/// An instruction touches sums of products, or another product begins them anew.
void claim(Warp&, u32 number);
/// Products of a warp that read shared memory at `address` and whose sums nobody has used are tainted; false: there are none.
bool taint(Warp&, u32 address, const char* why);
/// Runs the products up to a group.
void run_products(Machine&, Warp&, u32 group, bool finish);

/// Bounds of shared memory; OOB otherwise.
inline void check_shared(const Warp& warp, const Instruction& in, u32 address, u32 bytes) {
  if (address < kSharedBegin || u64(address) + bytes > warp.block->shared_bytes)
    fault("OOB", warp, in, "shared address %u, %u bytes, outside of %u..%u", address, bytes, unsigned(kSharedBegin),
          warp.block->shared_bytes);
  if (bytes <= 16 && bytes && address % (bytes & -bytes))
    fault("ALIGN", warp, in, "shared address %u of %u bytes is not aligned", address, bytes);
}

}  // namespace ptx
