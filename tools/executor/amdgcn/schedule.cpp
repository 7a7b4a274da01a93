// SPDX-License-Identifier: MIT
// A launch: workgroups in random order, random runnable waves for random spans of instructions, all from one seed.
#include <algorithm>
#include <numeric>

#include "machine.h"

namespace amdgcn {

namespace {

constexpr u64 kMostInstructions = 2'000'000'000;  // of a workgroup: more is a loop without end

void start_lds(Machine& machine, const Dispatch& d) {
  Lds& lds = machine.lds;
  lds.size = d.lds_bytes;
  lds.bytes.resize(d.lds_bytes + 16);
  for (size_t at = 0; at + 8 <= lds.bytes.size(); at += 8) {
    const u64 garbage = machine.random();
    std::memcpy(&lds.bytes[at], &garbage, 8);
  }
  lds.defined.assign(d.lds_bytes + 16, 0);
  const size_t granules = (size_t(d.lds_bytes) >> lds.granule_shift) + 2;
  if (lds.granules.size() < granules || lds.clock > 1u << 30) {
    lds.granules.assign(granules, {});
    lds.clock = 0;
  }
}

void forget(Machine& machine, Wave& wave) {
  for (auto& queue : wave.queue) queue.clear();
  std::memset(wave.vgpr_pending, 0, sizeof wave.vgpr_pending);
  std::memset(wave.sgpr_pending, 0, sizeof wave.sgpr_pending);
  std::memset(wave.sgpr_defined, 0, sizeof wave.sgpr_defined);
  std::memset(wave.ready, 0, sizeof wave.ready);
  wave.pending = 0;
  wave.wait_states = 0;
  for (u64& defined : wave.vgpr_defined) defined = wave.lanes == 64 ? 0 : 0xffffffff00000000ull;
  for (int file = 0; file < 2; file++)
    for (int r = 0; r < machine.registers_used[file]; r++) {
      u32* lanes = wave.vgpr[file * AGPR + r];
      const u64 garbage = machine.random();
      for (int lane = 0; lane < 64; lane += 8) {
        lanes[lane] = u32(garbage);
        lanes[lane + 3] = u32(garbage >> 32) ^ 0x7fc00000;  // NaN here and there
      }
    }
  for (u32& value : wave.sgpr) value = u32(machine.random());
  wave.scc = wave.scc_defined = false;
}

/// Fills registers as the hardware does before the first instruction: thread numbers in v0, user SGPRs in the order of
/// the kernel descriptor, then the number of the workgroup (gfx12: in trap registers).
void start_registers(Machine& machine, Wave& wave, const Dispatch& d, const u32 group[3]) {
  const u32 threads = d.threads[0] * d.threads[1] * d.threads[2];
  u64 exec = 0;
  for (int lane = 0; lane < wave.lanes; lane++) {
    const u32 thread = u32(wave.number * wave.lanes + lane);
    if (thread >= threads) break;
    exec |= 1ull << lane;
    const u32 x = thread % d.threads[0], y = thread / d.threads[0] % d.threads[1],
              z = thread / d.threads[0] / d.threads[1];
    wave.vgpr[0][lane] = x | y << 10 | z << 20;
  }
  wave.vgpr_defined[0] |= exec;
  wave.sgpr_defined[EXEC] = wave.sgpr_defined[EXEC + 1] = ~0u;
  wave.sgpr[EXEC] = wave.sgpr[EXEC + 1] = 0;
  wave.set_exec(exec);

  int next = 0;
  const auto push = [&](u32 value) {
    wave.sgpr[next] = value;
    wave.sgpr_defined[next++] = ~0u;
  };
  const auto push64 = [&](u64 value) { push(u32(value)), push(u32(value >> 32)); };
  const u32 has = d.properties;
  if (has & 1)
    push(0), push(u32(PRIVATE_SLOT << (SLOT_SHIFT - 32))), push(d.scratch_bytes * 64), push(0);  // private buffer
  if (has & 2) push64(0);                                                                        // dispatch packet
  if (has & 4) push64(0);                                                                        // queue
  if (has & 8) push64(d.kernarg);
  if (has & 16) push64(0);  // dispatch id
  if (has & 32) push64(0);  // flat scratch
  if (has & 64) push(d.scratch_bytes);
  const Block& arguments = machine.blocks[(d.kernarg >> SLOT_SHIFT) - 1];
  for (u32 i = 0; i < (d.preload & 127); i++) {
    u32 word;
    std::memcpy(&word, arguments.bytes + 4 * ((d.preload >> 7 & 511) + i), 4);
    push(word);
  }
  next = int(d.resources2 >> 1 & 31);
  if (machine.is_gfx12()) {
    const u32 trap[] = {group[1] | group[2] << 16, u32(wave.number) << 25, group[0]};
    for (int i = 0; i < 3; i++) {
      wave.sgpr[TTMP + 7 + i] = trap[i];
      wave.sgpr_defined[TTMP + 7 + i] = ~0u;
    }
    return;
  }
  for (int axis = 0; axis < 3; axis++)
    if (d.resources2 >> (7 + axis) & 1) push(group[axis]);
  if (d.resources2 >> 10 & 1) push(0);
  if (d.resources2 & 1 && machine.architecture == 0x90a) push(0);
}

void start_wave(Machine& machine, Wave& wave, int number, const Dispatch& d, const u32 group[3], int entry) {
  wave.lanes = machine.is_rdna() ? 32 : 64;
  wave.all_lanes = wave.lanes == 64 ? ~0ull : 0xffffffffull;
  wave.number = number;
  wave.global_number = ++machine.waves_started;
  wave.state = WaveState::running;
  wave.signals = wave.waits = machine.lds.clock;
  wave.pc = entry;
  wave.executed = 0;
  forget(machine, wave);
  wave.queue_of[LOADS] = LOADS;
  wave.queue_of[STORES] = machine.is_rdna() ? STORES : LOADS;
  wave.queue_of[LDS_QUEUE] = LDS_QUEUE;
  wave.queue_of[SCALARS] = machine.is_gfx12() ? SCALARS : LDS_QUEUE;
  wave.scratch_bytes = d.scratch_bytes;
  wave.scratch.assign(size_t(64) * d.scratch_bytes, 0);
  wave.scratch_defined.assign(size_t(64) * d.scratch_bytes, 0);
  start_registers(machine, wave, d, group);
}

/// A wave passes the barrier when every other one has signalled it or is done.
void pass_barriers(Machine& machine) {
  for (int k = 0; k < machine.waves_of_group; k++) {
    Wave& wave = *machine.waves[size_t(k)];
    if (wave.state != WaveState::at_barrier) continue;
    bool all = true;
    for (int j = 0; j < machine.waves_of_group; j++) {
      const Wave& other = *machine.waves[size_t(j)];
      all &= other.state == WaveState::done || other.signals > wave.waits;
    }
    if (!all) continue;
    wave.waits++;
    wave.state = WaveState::running;
  }
}

void run_for(Machine& machine, Wave& wave, u64 instructions) {
  while (instructions-- && wave.state == WaveState::running) {
    if (wave.pc < 0 || wave.pc >= int(machine.program.size())) fail("PC: outside the program");
    Instruction& in = machine.program[size_t(wave.pc++)];
    in.executed++;
    wave.executed++;
    wave.wait_states++;
    in.run(machine, wave, in);
  }
}

void run_group(Machine& machine, const Dispatch& d, const u32 group[3], int entry) {
  const u32 lanes = machine.is_rdna() ? 32 : 64, threads = d.threads[0] * d.threads[1] * d.threads[2];
  const int waves = int((threads + lanes - 1) / lanes);
  if (waves > MOST_WAVES) fail("LAUNCH: a workgroup of %d waves, at most %d fit", waves, MOST_WAVES);
  machine.waves_of_group = waves;
  start_lds(machine, d);
  while (int(machine.waves.size()) < waves) machine.waves.push_back(std::make_unique<Wave>());
  for (int k = 0; k < waves; k++) start_wave(machine, *machine.waves[size_t(k)], k, d, group, entry);
  u64 executed = 0;
  for (int left = waves; left;) {
    pass_barriers(machine);
    int runnable[MOST_WAVES], count = 0;
    for (int k = 0; k < waves; k++)
      if (machine.waves[size_t(k)]->state == WaveState::running) runnable[count++] = k;
    if (!count) fail("DEADLOCK: no wave can run, some never reach a barrier that others wait at");
    const bool random = machine.options.seed != 0;
    Wave& wave = *machine.waves[size_t(runnable[random ? machine.random() % u64(count) : 0])];
    const u64 before = wave.executed;
    run_for(machine, wave, random ? 1 + machine.random() % 200 : kMostInstructions);
    executed += wave.executed - before;
    if (executed > kMostInstructions) fail("RUNAWAY: a loop without end");
    left -= wave.state == WaveState::done;
  }
  machine.executed += executed;
  for (int k = 0; k < waves; k++)
    machine.lds.clock = std::max(machine.lds.clock, machine.waves[size_t(k)]->signals + 1);
}

}  // namespace

void launch(Machine& machine, const Dispatch& d) {
  machine.random_state = 88172645463325252ull ^ (machine.options.seed * 0x9E3779B97F4A7C15ull);
  for (int i = 0; i < 8; i++) machine.random();
  machine.waves_started = 0;
  for (Block& block : machine.blocks) block.writer.clear();
  const auto entry = machine.at.find(d.entry);
  if (entry == machine.at.end()) fail("PC: no instruction at the kernel's entry, %llx", (unsigned long long)d.entry);
  std::vector<u64> order(u64(d.groups[0]) * d.groups[1] * d.groups[2]);
  std::iota(order.begin(), order.end(), 0);
  if (machine.options.seed)
    for (u64 i = order.size(); i > 1; i--) std::swap(order[i - 1], order[machine.random() % i]);
  for (const u64 i : order) {
    const u32 group[3] = {u32(i % d.groups[0]), u32(i / d.groups[0] % d.groups[1]), u32(i / d.groups[0] / d.groups[1])};
    run_group(machine, d, group, entry->second);
  }
}

}  // namespace amdgcn
