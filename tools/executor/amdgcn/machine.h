// SPDX-License-Identifier: MIT
// State of a launch: waves with their registers, memory blocks, LDS, and what is known of every bit of it.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "instruction.h"

namespace amdgcn {

/// Queues of outstanding operations. Which of them a kind of operation counts on depends on the architecture.
enum Queue : int { LOADS, STORES, LDS_QUEUE, SCALARS, QUEUES };

enum class Access : u8 { load, store, lds, scalar, lane, flat };

struct Outstanding {
  Access access;
  bool writes;  // memory
  u16 vgpr, vgprs, sgpr, sgprs;
};

enum class WaveState : u8 { running, at_barrier, done };

/// One wave. Registers start with random contents that count as undefined: a vector register by lane, a scalar one by
/// bit (lane masks are partly defined), memory by byte.
struct Wave {
  u32 vgpr[VGPRS][64];
  u64 vgpr_defined[VGPRS];
  u8 vgpr_pending[VGPRS], vgpr_queue[VGPRS];  // outstanding results, and the queue of the last
  u32 sgpr[SGPRS], sgpr_defined[SGPRS];
  u8 sgpr_pending[SGPRS];
  bool scc = false, scc_defined = false;
  int lanes = 64;
  u64 all_lanes = ~0ull;
  int pending = 0;
  std::deque<Outstanding> queue[QUEUES];
  int queue_of[QUEUES];
  int pc = 0, number = 0;
  u32 global_number = 0;
  WaveState state = WaveState::running;
  u32 signals = 0, waits = 0;  // of the workgroup's barrier
  u64 executed = 0;
  std::vector<u8> scratch, scratch_defined;  // by lane
  u32 scratch_bytes = 0;
  u32 wait_states = 0, ready[VGPRS];  // issued so far, and from when on an MFMA's result may be touched

  u64 exec() const { return lanes == 64 ? u64(sgpr[EXEC + 1]) << 32 | sgpr[EXEC] : sgpr[EXEC]; }
  void set_exec(u64 mask) {
    sgpr[EXEC] = u32(mask);
    if (lanes == 64) sgpr[EXEC + 1] = u32(mask >> 32);
  }
};

[[noreturn]] void fault(const char* kind, const Wave&, const Instruction&, const char* format, ...)
    __attribute__((format(printf, 4, 5)));

/// A buffer of the launch. Its address is slot << 36 | offset: null and a neighbour's bytes cannot be hit by chance.
struct Block {
  u8* bytes = nullptr;
  u64 size = 0;
  u8* defined = nullptr;    // a byte for each
  std::vector<u32> writer;  // by byte: the wave that wrote it in this launch; empty until one does
  bool read_only = false;
  const char* name = "";

  void note_writer(u64 at, u64 count, u32 wave) {
    if (writer.empty()) writer.assign(size, 0);
    for (u64 byte = at; byte < at + count; byte++) writer[byte] = wave;
  }
};
enum : u32 { ATOMIC_WRITER = ~0u };
enum : int { SLOT_SHIFT = 36 };
enum : u64 { PRIVATE_SLOT = 0xfff };  // of gfx90a's private segment buffers

struct Options {
  u64 seed = 1;               // 0: waves run one after the other as far as barriers let them
  bool ignore_waits = false;  // for tests: as if every wait were missing
  bool permute_k = false;     // permutes k inside every matrix product: what must not matter
  bool races = true;
};

/// When some bytes of LDS were accessed, as signals of the wave + 1: the last write, the last read, and the last read by
/// another wave than that one.
struct Granule {
  u32 written = 0, read = 0, read_by_others = 0;
  u8 writer = 0, reader = 0, other_reader = 0;
  bool atomic = false;
};

/// LDS, with the clocks of its granules.
struct Lds {
  std::vector<u8> bytes, defined;
  u32 size = 0;
  int granule_shift = 2;
  std::vector<Granule> granules;
  u32 clock = 0;  // at which waves of a workgroup begin: all that earlier ones did lies before it
};

enum : int { MOST_WAVES = 32 };

/// A code object and its launches.
struct Machine {
  int architecture = 0;  // 0x90a, 0x942, 0x950, 0x1100, 0x1201
  bool is_rdna() const { return architecture >= 0x1000; }
  bool is_gfx12() const { return architecture >= 0x1200; }
  std::vector<Instruction> program;
  std::vector<std::unique_ptr<Instruction>> seconds;
  std::unordered_map<u64, int> at;  // by address
  int registers_used[2] = {1, 0};   // vector ones, and accumulation ones: up to the highest that an instruction names
  std::vector<Block> blocks;
  std::deque<std::vector<u8>> own_defined;  // of blocks whose owner keeps none
  std::deque<std::string> names;
  Options options;
  u64 random_state = 0;
  u64 executed = 0;
  Lds lds;
  std::vector<std::unique_ptr<Wave>> waves;
  int waves_of_group = 0;
  u32 waves_started = 0;

  u64 random() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
  }
};

/// Reads the text of llvm-objdump -d into the machine's program. Throws Fault for anything unknown, quoting the line.
void decode(Machine&, const char* disassembly);

struct Dispatch {
  u64 entry, kernarg;
  u32 groups[3], threads[3];
  u32 lds_bytes, scratch_bytes, resources1, resources2, properties, preload;  // of the kernel descriptor
};

/// Runs every workgroup. Throws Fault at the first error.
void launch(Machine&, const Dispatch&);

/// Notes an operation whose results or bytes are outstanding until a wait.
void issue(Wave&, int queue, Access, bool writes, int vgpr = 0, int vgprs = 0, int sgpr = 0, int sgprs = 0);

}  // namespace amdgcn
