// SPDX-License-Identifier: MIT
// A launch: blocks and warps in random order for random spans of instructions, copies at random moments, all from one seed.
//
// Lanes of a warp that take different ways are groups; the group that is furthest behind runs, and groups that meet join.
#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <numeric>

#include "lanes.h"

namespace ptx {

void fault(const char* kind, const Warp& warp, const Instruction& in, const char* format, ...) {
  char text[600];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fail("%s: %s, in block %u,%u,%u warp %d, kernel %s: %.200s", kind, text, warp.block->id[0], warp.block->id[1],
       warp.block->id[2], warp.number, warp.block->kernel->name.c_str(), in.text.c_str());
}

namespace {

void start_warp(Machine& machine, Block& block, Warp& warp, int number) {
  const Kernel& kernel = *block.kernel;
  warp.block = &block;
  warp.number = number;
  const u32 threads = block.threads, first = u32(number) * 32;
  warp.live = threads - first >= 32 ? ~0u : (1u << (threads - first)) - 1;
  warp.groups.assign(1, {0, warp.live});
  if (warp.file_bytes < kernel.file_bytes) {
    warp.file.reset(static_cast<u8*>(std::aligned_alloc(64, (kernel.file_bytes + 4095) / 4096 * 4096)));
    warp.file_bytes = kernel.file_bytes;
    madvise(warp.file.get(), warp.file_bytes, MADV_NOHUGEPAGE);  // few of its registers are ever touched
  }
  warp.predicates.assign(kernel.predicates, u32(machine.random()));
  warp.defined.assign(kernel.registers, 0);
  warp.defined[0] = ~0u;
  warp.pending.assign(kernel.registers, 0);
  warp.inputs.assign(kernel.registers, 0);
  warp.written.assign(kernel.registers, 0);
  warp.fences = 1;
  warp.products.clear();
  warp.unused.clear();
  warp.unclaimed.assign(kernel.registers, 0);
  warp.taint.clear();
  warp.leaving.clear();
  warp.group_open = 1, warp.groups_done = 0, warp.bulk_open = 1, warp.bulk_uncommitted = 0, warp.copies_open = 1;
  warp.seen = {}, warp.proxied = {}, warp.told = {};
  warp.seen.at[number] = warp.seen.at[FETCHES + number] = 1;
  warp.registers_held = 0;
  warp.cluster_arrivals = warp.cluster_waits = 0;
  warp.syncs = 1, warp.step = 0, warp.touching = 0, warp.met_at = 0;
  const auto fill = [&](Special which, u32 value) {
    std::fill_n(reinterpret_cast<u32*>(warp.file.get() + kernel.special[which]), 32, value);
  };
  for (int axis = 0; axis < 3; axis++) {
    fill(Special(NTID_X + axis), machine.threads[axis]);
    fill(Special(CTAID_X + axis), block.id[axis]);
    fill(Special(NCTAID_X + axis), machine.grid[axis]);
  }
  for (u32 lane = 0; lane < 32; lane++) {
    const u32 thread = first + lane;
    const auto put = [&](Special which, u32 value) {
      reinterpret_cast<u32*>(warp.file.get() + kernel.special[which])[lane] = value;
    };
    put(LANEID, lane);
    put(CLUSTER_RANK, block.rank);
    put(TID_X, thread % machine.threads[0]);
    put(TID_Y, thread / machine.threads[0] % machine.threads[1]);
    put(TID_Z, thread / machine.threads[0] / machine.threads[1]);
  }
}

void start_block(Machine& machine, Block& block, const Launch& launch, u32 number) {
  block.kernel = machine.kernel;
  block.number = number;
  block.rank = number % machine.cluster;
  block.id[0] = number % launch.grid[0];
  block.id[1] = number / launch.grid[0] % launch.grid[1];
  block.id[2] = number / launch.grid[0] / launch.grid[1];
  block.threads = launch.threads[0] * launch.threads[1] * launch.threads[2];
  block.shared_bytes = machine.kernel->shared_bytes + launch.shared_bytes;
  block.shared.resize(block.shared_bytes + 16);
  for (u8& byte : block.shared) byte = 0xff;  // NaN of every float format
  block.shared_defined.assign(block.shared_bytes + 16, 0);
  const int warps = int((block.threads + 31) / 32);
  block.races.on = machine.options.races;
  block.races.start(block.shared_bytes, machine.kernel->granule_shift, warps);
  block.mbarriers.clear();
  for (NamedBarrier& barrier : block.named) barrier = {};
  block.copies.clear();
  while (int(block.warps.size()) < warps) block.warps.push_back(std::make_unique<Warp>());
  block.warps.resize(size_t(warps));
  for (int k = 0; k < warps; k++) start_warp(machine, block, *block.warps[size_t(k)], k);
  block.left = warps;
}

/// Groups at one place join; those that waited for others to come look again.
void join(Warp& warp) {
  auto& groups = warp.groups;
  for (size_t a = 0; a < groups.size(); a++)
    for (size_t b = a + 1; b < groups.size();) {
      const auto open = [](const Group& group) {
        return group.state == Group::running || group.state == Group::converging;
      };
      if (groups[a].pc != groups[b].pc || !open(groups[a]) || !open(groups[b])) {
        b++;
        continue;
      }
      groups[a].lanes |= groups[b].lanes;
      groups[a].state = Group::running;
      groups.erase(groups.begin() + i64(b));
    }
}

Group* furthest_behind(Warp& warp) {
  Group* found = nullptr;
  for (Group& group : warp.groups)
    if (group.state == Group::running && (!found || group.pc < found->pc)) found = &group;
  return found;
}

/// An ordinary instruction that touches a register which belongs to wgmma.
void touch_product(Warp& warp, const Instruction& in) {
  const auto& is = warp.block->kernel->is_product;
  const auto each = [&](const Operand& one, bool writes) {
    if (one.kind != Kind::lanes || !is[one.number]) return;
    // PTX forbids reading an input, too. A read does no harm, and nvcc's own code reads them.
    if (std::max(warp.pending[one.number], writes ? warp.inputs[one.number] : 0) > warp.groups_done)
      fault("PRODUCT", warp, in, "touches %s, which a wgmma under way uses: no wgmma.wait_group is between",
            one.text.c_str());
    if (writes) warp.written[one.number] = warp.fences;
    if (warp.unclaimed[one.number]) claim(warp, one.number);
  };
  for (int k = 0; k < in.operands; k++) {
    each(in.operand[k], k == 0);
    const Operand& list = in.operand[k];
    if (list.kind == Kind::list)
      for (int i = 0; i < list.count; i++) each(in.items[size_t(list.first + i)], k == 0);
  }
}

void run_for(Machine& machine, Warp& warp, u64 instructions) {
  auto& program = warp.block->kernel->program;
  while (instructions--) {
    Group* group = furthest_behind(warp);
    if (!group) return;
    if (group->pc >= int(program.size()))
      fail("PC: kernel %s: behind the last instruction", warp.block->kernel->name.c_str());
    Instruction& in = program[size_t(group->pc)];
    u32 lanes = group->lanes;
    if (in.converges && lanes != warp.live) {
      group->state = Group::converging;
      continue;
    }
    machine.executed++;
    Step step = Step::next;
    warp.group = group;
    if (in.guard >= 0) {
      const u32 missing = lanes & ~warp.defined[in.guard_number];
      if (missing) fault("POISON", warp, in, "the guard was never written (lane %d)", __builtin_ctz(missing));
      const u32 bits = warp.predicates[size_t(in.guard)];
      lanes &= in.guard_negated ? ~bits : bits;
    }
    if (lanes) {
      in.executed++;
      warp.step++;
      if (in.touches_product) touch_product(warp, in);
      step = in.run(machine, warp, in, lanes);
    }
    switch (step) {
      case Step::next: group->pc++; break;
      case Step::stay: break;
      case Step::branch:
        if (lanes == group->lanes) {
          group->pc = in.target;
        } else {
          group->lanes &= ~lanes;
          group->pc++;
          warp.groups.push_back({in.target, lanes});
        }
        break;
      case Step::exit:
        warp.live &= ~lanes;
        group->lanes &= ~lanes;
        if (group->lanes)
          group->pc++;
        else
          warp.groups.erase(warp.groups.begin() + (group - warp.groups.data()));
        for (Group& other : warp.groups)
          if (other.state == Group::converging) other.state = Group::running;
        if (!warp.live) {
          if (!warp.products.empty()) fault("PRODUCT", warp, in, "leaves while a wgmma is under way");
          for (const Leaving& one : warp.leaving)
            if (!one.read) fault("RACE", warp, in, "leaves while a bulk copy still reads its shared memory");
          warp.block->left--;
          return;
        }
    }
    if (warp.groups.size() > 1) join(warp);
  }
}

/// Groups whose phase has ended go on.
void wake(Warp& warp) {
  bool any = false;
  for (Group& group : warp.groups) {
    if (group.state == Group::at_cluster && warp.block->cluster->phase >= warp.cluster_arrivals)
      group.state = Group::running;
    if (group.state != Group::at_phase) continue;
    const Mbarrier& barrier = warp.block->mbarriers[group.barrier];
    if ((barrier.phase & 1) == group.parity) continue;
    group.state = Group::running;
    any = true;
  }
  if (any && warp.groups.size() > 1) join(warp);
}

[[noreturn]] void deadlock(const std::vector<Block*>& resident) {
  std::string said = "DEADLOCK: no warp can go on";
  int told = 0;
  for (const Block* block : resident)
    for (const auto& warp : block->warps)
      for (const Group& group : warp->groups) {
        if (++told > 24) continue;
        char text[300];
        const Instruction& in =
            block->kernel->program[size_t(std::min<int>(group.pc, int(block->kernel->program.size()) - 1))];
        if (group.state == Group::at_phase) {
          const Mbarrier& barrier = const_cast<Block*>(block)->mbarriers[group.barrier];
          std::snprintf(text, sizeof text,
                        "\n  block %u warp %d lanes %08x wait at mbarrier %u for the end of a phase of parity %u: "
                        "phase %u, %u of %u arrivals and %lld bytes are missing",
                        block->number, warp->number, group.lanes, group.barrier, group.parity, barrier.phase,
                        barrier.pending, barrier.expected, static_cast<long long>(barrier.bytes));
        } else if (group.state == Group::at_barrier) {
          const NamedBarrier& barrier = block->named[group.barrier];
          std::snprintf(text, sizeof text, "\n  block %u warp %d waits at barrier %u: %u of %u threads have come",
                        block->number, warp->number, group.barrier, barrier.arrived, barrier.threads);
        } else if (group.state == Group::at_cluster) {
          std::snprintf(text, sizeof text, "\n  block %u warp %d waits for its cluster: %u of %u warps have come",
                        block->number, warp->number, block->cluster->arrived, block->cluster->warps);
        } else {
          std::snprintf(text, sizeof text, "\n  block %u warp %d lanes %08x wait for other lanes of %08x at: %.120s",
                        block->number, warp->number, group.lanes, warp->live, in.text.c_str());
        }
        said += text;
      }
  throw Fault(said);
}

}  // namespace

void launch(Machine& machine, const Launch& launch) {
  const auto found = machine.module.kernels.find(launch.kernel);
  if (found == machine.module.kernels.end()) fail("LAUNCH: there is no kernel %s", launch.kernel);
  machine.kernel = found->second.get();
  const u64 threads = u64(launch.threads[0]) * launch.threads[1] * launch.threads[2];
  if (!threads || threads > machine.kernel->most_threads)
    fail("LAUNCH: %llu threads, kernel %s takes 1 to %u", static_cast<unsigned long long>(threads), launch.kernel,
         machine.kernel->most_threads);
  if (machine.parameters.size() < machine.kernel->parameter_bytes)
    fail("LAUNCH: %zu bytes of parameters, kernel %s has %u", machine.parameters.size(), launch.kernel,
         machine.kernel->parameter_bytes);
  if (u64(machine.kernel->shared_bytes) + launch.shared_bytes >
      233472)  // 228 KiB of an SM, of which 1 KiB is the system's
    fail("LAUNCH: %u bytes of shared memory, a block has at most 232448",
         machine.kernel->shared_bytes - kSharedBegin + launch.shared_bytes);
  for (int axis = 0; axis < 3; axis++)
    machine.grid[axis] = launch.grid[axis], machine.threads[axis] = launch.threads[axis];
  machine.global = {};
  machine.random_state = machine.options.seed * 0x9e3779b97f4a7c15ull + 1;
  for (int k = 0; k < 8; k++) machine.random();
  const bool random = machine.options.seed != 0;
  const u32 count = launch.grid[0] * launch.grid[1] * launch.grid[2];
  const u32 said = machine.kernel->cluster, cluster = std::max(said, launch.cluster);
  if (launch.cluster && said != 1 && said != launch.cluster)
    fail("LAUNCH: clusters of %u, kernel %s says %u", launch.cluster, launch.kernel, said);
  if (cluster > 8 || launch.grid[0] % cluster)
    fail("LAUNCH: %u blocks along x, kernel %s has clusters of %u", launch.grid[0], launch.kernel, cluster);
  machine.cluster = cluster;
  std::vector<u32> order(count / cluster);  // of clusters
  std::iota(order.begin(), order.end(), 0);
  if (random)
    for (size_t k = order.size(); k > 1; k--) std::swap(order[k - 1], order[machine.random() % k]);
  const auto begin_block = [&](u32 number, std::vector<Block*>& resident) {
    if (machine.spare.empty()) machine.spare.push_back(std::make_unique<Block>());
    Block* block = machine.spare.back().release();
    machine.spare.pop_back();
    resident.push_back(block);
    start_block(machine, *block, launch, number);
    return block;
  };
  const u64 end = machine.executed + machine.options.most;
  size_t next = 0;
  std::vector<Block*> resident;
  // Blocks that wait for each other meet: more than one is there.
  const u32 least = machine.kernel->waits_for_others ? 3 : 1;
  const size_t room = launch.together ? count : std::max<u32>({least, launch.resident, cluster});
  while (next < order.size() || !resident.empty()) {
    while (next < order.size() && resident.size() + cluster <= room) {
      try {
        const auto of = std::make_shared<Cluster>();
        for (u32 k = 0; k < cluster; k++) {
          Block* const block = begin_block(order[next] * cluster + k, resident);
          block->cluster = of;
          of->blocks.push_back(block);
          of->warps += u32(block->left);
        }
        next++;
      } catch (...) {
        for (Block* one : resident) machine.spare.emplace_back(one);
        throw;
      }
    }
    try {
      std::vector<Warp*> can;
      std::vector<Block*> copying;
      for (Block* block : resident) {
        for (auto& warp : block->warps) {
          if (!warp->live) continue;
          wake(*warp);
          if (furthest_behind(*warp)) can.push_back(warp.get());
        }
        if (!block->copies.empty()) copying.push_back(block);
      }
      const bool copies = !copying.empty() && (can.empty() || (random && machine.random() % 4 == 0));
      if (copies) {
        Block* block = copying[random ? machine.random() % copying.size() : 0];
        const size_t which = random ? machine.random() % block->copies.size() : 0;
        // A copy out of shared memory lingers, so that warps which do not wait for it run on for long.
        const bool lingers = random && block->copies[which].what == Copy::bulk_out && !can.empty();
        if (!lingers || machine.random() % 16 == 0) perform(machine, *block, which);
      } else if (can.empty()) {
        deadlock(resident);
      } else if (random) {
        run_for(machine, *can[machine.random() % can.size()], 1 + machine.random() % 400);
      } else {
        run_for(machine, *can[0], 1000);
      }
      if (machine.executed > end)
        fail("RUNAWAY: kernel %s: more than %llu instructions", launch.kernel,
             static_cast<unsigned long long>(machine.options.most));
      for (size_t k = 0; k < resident.size();) {
        if (resident[k]->left || !resident[k]->copies.empty()) {
          k++;
          continue;
        }
        resident[k]->cluster->blocks[resident[k]->rank] = nullptr;
        machine.spare.emplace_back(resident[k]);
        resident.erase(resident.begin() + i64(k));
      }
    } catch (...) {
      for (Block* one : resident) machine.spare.emplace_back(one);
      throw;
    }
  }
}

}  // namespace ptx
