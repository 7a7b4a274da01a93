// SPDX-License-Identifier: MIT
// PTX ISA 9.0: "Parallel Synchronization and Communication Instructions": bar, bar.warp.sync, mbarrier, fence, membar.
#include "lanes.h"

namespace ptx {

namespace {

void release(Warp& warp, Clock& seen, Clock& proxied) {
  seen.join(warp.seen);
  proxied.join(warp.proxied);
  warp.seen.at[warp.number]++, warp.seen.at[FETCHES + warp.number]++;
}
void acquire(Warp& warp, const Clock& seen, const Clock& proxied) {
  warp.seen.join(seen);
  warp.proxied.join(proxied);
}

/// All lanes of a warp know what each of them did.
void meet(Warp& warp) {
  warp.syncs++;
  warp.touching = 0;
  warp.met_at = warp.seen.at[warp.number]++;
}

void complete(Block& block, NamedBarrier& barrier, u32 number) {
  barrier.seen = barrier.arriving;
  barrier.proxied = barrier.arriving_proxied;
  barrier.arrived = barrier.threads = 0;
  barrier.rounds++;
  for (auto& warp : block.warps)
    for (Group& group : warp->groups)
      if (group.state == Group::at_barrier && group.barrier == number) {
        group.state = Group::running;
        acquire(*warp, barrier.seen, barrier.proxied);
        meet(*warp);
      }
}

template <bool kWaits> Step arrive_named(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  Block& block = *warp.block;
  const u32 number = uniform<u32>(warp, in, in.operand[0], lanes, "the barrier");
  if (number > 15) fault("BARRIER", warp, in, "barrier %u, must be 0 to 15", number);
  const u32 all = (block.threads + 31) / 32 * 32;
  const u32 threads = in.operands > 1 ? uniform<u32>(warp, in, in.operand[1], lanes, "the count") : all;
  if (!threads || threads % 32 || threads > all)
    fault("BARRIER", warp, in, "%u threads, must be a multiple of 32 and at most %u", threads, all);
  NamedBarrier& barrier = block.named[number];
  if (barrier.arrived && barrier.threads != threads)
    fault("BARRIER", warp, in, "%u threads at barrier %u, others came with %u", threads, number, barrier.threads);
  if (!barrier.arrived) barrier.arriving = {}, barrier.arriving_proxied = {};
  barrier.threads = threads;
  barrier.arrived += 32;
  release(warp, barrier.arriving, barrier.arriving_proxied);
  if (warp.stored) warp.stored = false, block.stored = true;
  if (kWaits) {
    warp.group->state = Group::at_barrier;
    warp.group->barrier = number;
  }
  if (barrier.arrived == threads) complete(block, barrier, number);
  return Step::next;
}

u32 address_of(const Warp& warp, const Instruction& in, const Operand& operand, int lane) {
  const Operand& base = in.items[size_t(operand.first)];
  if (base.kind == Kind::constant) return u32(base.immediate + operand.immediate);
  return u32((base.bytes == 8 ? source<u64>(warp, base)[lane] - kSharedWindow : source<u32>(warp, base)[lane]) +
             u64(operand.immediate));
}
void know_address(const Warp& warp, const Instruction& in, const Operand& operand, u32 lanes) {
  must_know(warp, in, in.items[size_t(operand.first)], lanes, "the address");
}

Step init(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  know_address(warp, in, in.operand[0], lanes);
  must_know(warp, in, in.operand[1], lanes, "the count");
  each_lane(lanes, [&](int k) {
    const u32 address = address_of(warp, in, in.operand[0], k), count = source<u32>(warp, in.operand[1])[k];
    check_shared(warp, in, address, 8);
    if (!count || count >= 1u << 20) fault("MBARRIER", warp, in, "a count of %u, must be 1 to 2^20 - 1", count);
    auto& all = warp.block->mbarriers;
    const bool known = all.count(address);
    if (!known && all.size() == MOST_MBARRIERS)
      fault("MBARRIER", warp, in, "more than %d mbarriers", int(MOST_MBARRIERS));
    const int slot = known ? all[address].slot : MOST_WARPS + int(all.size());
    Mbarrier made;
    made.expected = made.pending = count;
    made.slot = slot;
    made.initialiser = warp.number;
    made.initialised = warp.seen.at[warp.number];
    all[address] = made;
  });
  return Step::next;
}

/// seen: what the lane that arrives knows of.
void arrive(Warp& warp, const Instruction& in, Mbarrier& barrier, i64 bytes, const Clock& seen) {
  if (!barrier.pending) fault("MBARRIER", warp, in, "more arrivals than the phase takes (%u)", barrier.expected);
  barrier.bytes += bytes;
  barrier.pending--;
  barrier.arriving.join(seen);
  barrier.arriving_proxied.join(warp.proxied);
  settle(*warp.block, barrier);
}

template <bool kExpects> Step arrive_phase(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  know_address(warp, in, in.operand[1], lanes);
  if (kExpects) must_know(warp, in, in.operand[2], lanes, "the count of bytes");
  Clock seen = warp.seen;  // of what other lanes did since all met, none knows
  if (warp.touching & ~lanes) seen.at[warp.number] = warp.met_at;
  each_lane(lanes, [&](int k) {
    Mbarrier& barrier = mbarrier_at(warp, in, address_of(warp, in, in.operand[1], k));
    arrive(warp, in, barrier, kExpects ? i64(source<u32>(warp, in.operand[2])[k]) : 0, seen);
  });
  warp.seen.at[warp.number]++, warp.seen.at[FETCHES + warp.number]++;
  return Step::next;
}

/// Arrives at an mbarrier of any block of the cluster.
Step arrive_remote(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  know_address(warp, in, in.operand[1], lanes);
  const u32 epoch = warp.seen.at[warp.number];
  if (warp.touching & ~lanes) warp.seen.at[warp.number] = warp.met_at;  // as above
  each_lane(lanes, [&](int k) {
    const u32 mapped = address_of(warp, in, in.operand[1], k), rank = mapped >> kRankShift;
    Warp there = stand_in(warp, in, rank == 0 ? warp.block->rank : rank - 1);
    arrive(there, in, mbarrier_at(there, in, mapped & kInBlock), 0, there.seen);
  });
  warp.seen.at[warp.number] = epoch + 1, warp.seen.at[FETCHES + warp.number]++;
  return Step::next;
}

Step try_wait(Machine& machine, Warp& warp, const Instruction& in, u32 lanes) {
  know_address(warp, in, in.operand[1], lanes);
  must_know(warp, in, in.operand[2], lanes, "the phase");
  u32 done = 0;
  each_lane(lanes, [&](int k) {
    const u32 address = address_of(warp, in, in.operand[1], k), parity = source<u32>(warp, in.operand[2])[k];
    if (parity > 1) fault("MBARRIER", warp, in, "a parity of %u, must be 0 or 1", parity);
    Mbarrier& barrier = mbarrier_at(warp, in, address);
    if ((barrier.phase & 1) != parity) {
      done |= 1u << k;
      acquire(warp, barrier.seen, barrier.proxied);
    } else {
      warp.group->barrier = address;
      warp.group->parity = parity;
    }
  });
  // Gives up before the phase ends, as it may: a wait that does not ask again is wrong.
  if (done == warp.live) meet(warp);
  if (done != lanes && (in.a || (machine.random() & 1))) {
    warp.group->state = Group::at_phase;
    if (!done && !in.a) return Step::stay;
  }
  set_truth(warp, in.operand[0], lanes, done, ~0u);
  return Step::next;
}

/// Knowledge of other blocks of the cluster is as by releases and acquires (global.cpp). What a block has stored to others one of its warps
/// releases: the others come relaxed behind a barrier of the block.
template <bool kRelaxed> Step arrive_cluster(Machine&, Warp& warp, const Instruction& in, u32) {
  Cluster& cluster = *warp.block->cluster;
  if (warp.cluster_arrivals != warp.cluster_waits)
    fault("BARRIER", warp, in, "comes to the cluster's barrier again, with no barrier.cluster.wait between");
  warp.cluster_arrivals++;
  if (!kRelaxed) warp.stored = warp.block->stored = false;
  if (warp.stored) fault("RACE", warp, in, "comes relaxed behind stores to other blocks that nobody can release");
  cluster.arriving.join_blocks((kRelaxed ? warp.told : warp.seen).with_own(warp.block->number));
  cluster.arriving_proxied.join_blocks((kRelaxed ? warp.told : warp.proxied).with_own(warp.block->number));
  warp.seen.at[warp.number]++, warp.seen.at[FETCHES + warp.number]++;
  if (++cluster.arrived < cluster.warps) return Step::next;
  cluster.arrived = 0, cluster.phase++;
  for (const Block* block : cluster.blocks)
    if (block && block->stored)
      fault("RACE", warp, in, "block %u has stored to others and no warp of it released that", block->number);
  cluster.seen = cluster.arriving, cluster.proxied = cluster.arriving_proxied;
  return Step::next;
}
Step wait_cluster(Machine&, Warp& warp, const Instruction& in, u32) {
  const Cluster& cluster = *warp.block->cluster;
  if (warp.cluster_arrivals == warp.cluster_waits)
    fault("BARRIER", warp, in, "waits for the cluster's barrier, to which it did not come");
  if (cluster.phase < warp.cluster_arrivals) {
    warp.group->state = Group::at_cluster;
    return Step::stay;
  }
  warp.cluster_waits++;
  warp.seen.join_all(cluster.seen.blocks, warp.block->number);
  warp.proxied.join_all(cluster.proxied.blocks, warp.block->number);
  warp.seen.at[REMOTE] = cluster.phase;
  meet(warp);
  return Step::next;
}

/// Makes all that this warp has seen known to the async proxy, too.
Step proxy_fence(Machine&, Warp& warp, const Instruction&, u32) {
  warp.proxied.join(warp.seen);
  warp.seen.at[warp.number]++;
  return Step::next;
}
Step tell_of_mbarriers(Machine& machine, Warp& warp, const Instruction& in, u32 lanes) {
  warp.told = warp.seen;
  return proxy_fence(machine, warp, in, lanes);
}

Step warp_sync(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const u32 members = uniform<u32>(warp, in, in.operand[0], lanes, "the mask");
  if (~members & lanes) fault("CONVERGE", warp, in, "a lane that executes it is not in its mask");
  if ((lanes & members) == (members & warp.live)) return meet(warp), Step::next;
  warp.group->state = Group::converging;
  return Step::stay;
}

}  // namespace

Warp stand_in(const Warp& warp, const Instruction& in, u32 rank) {
  const Cluster& cluster = *warp.block->cluster;
  Block* const block = rank < cluster.blocks.size() ? cluster.blocks[rank] : nullptr;
  if (!block) fault("OOB", warp, in, "block %u of the cluster, which is not there or has left", rank);
  const u32 own = warp.block->number;
  if (block != warp.block && warp.cluster_waits == 0)
    fault("RACE", warp, in, "reaches another block that may not have begun: no barrier.cluster is before");
  Warp there;
  there.block = block;
  there.number = block == warp.block ? warp.number : int(MOST_WARPS);
  there.seen = warp.seen.of_block(own, block->number);
  there.proxied = warp.proxied.of_block(own, block->number);
  return there;
}

void settle(Block&, Mbarrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  barrier.phase++;
  barrier.pending = barrier.expected;
  barrier.arriving.at[barrier.slot] = barrier.phase;
  barrier.seen.join(barrier.arriving);
  barrier.proxied.join(barrier.arriving_proxied);
}

Mbarrier& mbarrier_at(Warp& warp, const Instruction& in, u32 address) {
  check_shared(warp, in, address, 8);
  const auto found = warp.block->mbarriers.find(address);
  if (found == warp.block->mbarriers.end())
    fault("MBARRIER", warp, in, "no mbarrier was initialised at shared address %u", address);
  const Mbarrier& barrier = found->second;
  if (barrier.initialiser != warp.number && warp.seen.at[barrier.initialiser] < barrier.initialised)
    fault("RACE", warp, in, "the mbarrier at %u was initialised by warp %d with nothing between that orders them",
          address, barrier.initialiser);
  return found->second;
}

OPCODE("bar barrier", {
  if (d.take("warp")) {
    if (!d.take("sync")) d.refuse("it must be .sync");
    d.end(1, warp_sync);
    return d.value(0, 4);
  }
  if (d.take("cluster")) {
    const bool arrives = d.one_of({"arrive", "wait"}) == 0;
    const bool relaxed = arrives && d.take("relaxed");
    if (!relaxed && !d.take(arrives ? "release" : "acquire")) d.refuse("its order must be written");
    if (!d.take("aligned")) d.refuse("it must be .aligned");
    d.end(0, !arrives ? wait_cluster : relaxed ? arrive_cluster<true> : arrive_cluster<false>);
    d.in.converges = true;
    return;
  }
  d.take("cta");
  const int which = d.one_of({"sync", "arrive"});
  d.end(which == 1 ? 2 : 1, 2, which == 0 ? arrive_named<true> : arrive_named<false>);
  d.values(0, d.in.operands, 4);
  d.in.converges = true;
});

OPCODE("mbarrier", {
  const int what = d.one_of({"init", "arrive", "try_wait", "inval"});
  if (what == 2 && !d.take("parity")) d.refuse("it must be .parity");
  const bool expects = what == 1 && d.take("expect_tx");
  const bool remote = what == 1 && !expects && d.take("shared::cluster");
  if (!remote && !d.take("shared::cta") && !d.take("shared")) d.refuse("the mbarrier must lie in .shared::cta");
  if (d.next() != "b64") d.refuse("an mbarrier has .b64");
  if (what == 0) {
    d.end(2, init);
    d.address(0), d.value(1, 4);
  } else if (what == 1) {
    if (d.in.operands && d.in.operand[0].kind != Kind::none) d.refuse("the state of an arrival must be _");
    d.end(expects ? 3 : 2, expects ? arrive_phase<true> : remote ? arrive_remote : arrive_phase<false>);
    d.address(1);
    if (expects) d.value(2, 4);
  } else if (what == 2) {
    d.end(3, try_wait);
    d.predicate(0), d.address(1), d.value(2, 4);
  } else {
    d.refuse(".inval is unknown");
  }
});

OPCODE("fence membar", {
  if (d.take("proxy")) {
    if (!d.take("async")) d.refuse("the proxy is unknown");
    d.take("shared::cta") || d.take("global");
    return d.end(0, proxy_fence);
  }
  if (d.take("mbarrier_init")) {
    if (!d.take("release") || !d.take("cluster")) d.refuse("it must be .release.cluster");
    return d.end(0, tell_of_mbarriers);
  }
  d.take("sc") || d.take("acq_rel");
  d.one_of({"cta", "gpu", "gl", "sys"});
  d.end(0, nothing);
});

}  // namespace ptx
