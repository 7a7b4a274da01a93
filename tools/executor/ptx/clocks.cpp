// SPDX-License-Identifier: MIT
#include "clocks.h"

#include <string>

#include "machine.h"

namespace ptx {

void Clock::join_blocks(const std::shared_ptr<const Blocks>& more) {
  const auto holds = [](const Blocks& all, const Blocks& some) {
    return std::all_of(some.begin(), some.end(), [&](const auto& one) {
      const auto found = all.find(one.first);
      return found != all.end() && std::equal(one.second.begin(), one.second.end(), found->second.begin(),
                                              [](u32 a, u32 b) { return a <= b; });
    });
  };
  if (!blocks || holds(*more, *blocks)) {
    blocks = more;
  } else if (!holds(*blocks, *more)) {
    const auto both = std::make_shared<Blocks>(*blocks);
    for (const auto& [block, epochs] : *more) {
      auto& held = (*both)[block];
      for (size_t k = 0; k < epochs.size(); k++) held[k] = std::max(held[k], epochs[k]);
    }
    blocks = both;
  }
}

std::shared_ptr<Blocks> Clock::with_own(u32 own) const {
  const auto all = blocks ? std::make_shared<Blocks>(*blocks) : std::make_shared<Blocks>();
  auto& held = (*all)[own];
  for (size_t k = 0; k < held.size(); k++) held[k] = std::max(held[k], at[k]);
  return all;
}

void Clock::join_all(const std::shared_ptr<const Blocks>& all, u32 own) {
  join_blocks(all);
  const auto found = all->find(own);
  for (size_t k = 0; found != all->end() && k < found->second.size(); k++) at[k] = std::max(at[k], found->second[k]);
}

Clock Clock::of_block(u32 own, u32 target) const {
  Clock made;
  made.join_all(with_own(own), target);
  return made;
}

namespace {

struct Span { size_t first, last; };
Span granules(const Races& races, u32 address, u32 bytes) {
  return {address >> races.shift, (address + bytes - 1) >> races.shift};
}
const char* agent(int number) {
  return number < MOST_WARPS ? "warp" : number == REMOTE ? "stores of the cluster, agent" : "copies of mbarrier";
}
int number_of(int of) { return of < MOST_WARPS ? of : of - MOST_WARPS; }

[[noreturn]] void race(const Warp& warp, const Instruction& in, const char* what, size_t address, int other) {
  const Races& races = warp.block->races;
  std::string more;
  if (other >= MOST_WARPS)
    for (const auto& [place, barrier] : warp.block->mbarriers)
      if (barrier.slot == other)
        more = " (at " + std::to_string(place) + ", of its phase " +
               std::to_string(races.write[address >> races.shift] - 1) + "; " + std::to_string(barrier.phase) +
               " have ended, this warp waited for " + std::to_string(warp.seen.at[other]) + ")";
  fault("RACE", warp, in, "%s shared address %zu that %s %d%s touched, with nothing between that orders them", what,
        address, agent(other), number_of(other), more.c_str());
}

void behind_write(const Warp& warp, const Instruction& in, const Races& races, size_t g, const char* what,
                  bool own_too) {
  const int who = races.writer[g];
  if (!races.write[g] || (!own_too && who == warp.number)) return;
  if (warp.seen.at[who] < races.write[g]) race(warp, in, what, g << races.shift, who);
}
void behind_proxy(const Warp& warp, const Instruction& in, const Races& races, size_t g, const char* what) {
  if (races.write[g] && races.generic[g] && warp.proxied.at[races.writer[g]] < races.write[g])
    fault("PROXY", warp, in,
          "%s shared address %zu that warp %d wrote by ordinary stores, with no fence.proxy.async between", what,
          g << races.shift, int(races.writer[g]));
}
void behind_reads(const Warp& warp, const Instruction& in, const Races& races, size_t g) {
  const u32* read = &races.read[g * size_t(races.warps)];
  for (int k = 0; k < races.warps; k++)
    if (k != warp.number && read[k] > warp.seen.at[k]) race(warp, in, "writes", g << races.shift, k);
}
void behind_fetches(const Warp& warp, const Instruction& in, const Races& races, u32 address, u32 bytes) {
  for (size_t c = address / 16; c <= (address + bytes - 1) / 16; c++) {
    const u32* fetched = &races.fetched[c * size_t(races.warps)];
    for (int k = 0; k < races.warps; k++) {
      const bool flying = fetched[k] & IN_FLIGHT;
      if (!flying && (k == warp.number || fetched[k] <= warp.seen.at[FETCHES + k])) continue;
      Warp& other = *warp.block->warps[size_t(k)];
      const std::string why = "RACE: warp " + std::to_string(warp.number) + " overwrites shared address " +
                              std::to_string(c * 16) + " by " + in.text.substr(0, 80) + ", which a product of warp " +
                              std::to_string(k) + " reads";
      if (taint(other, u32(c * 16), why.c_str())) continue;
      if (flying)
        fault("RACE", warp, in,
              "writes shared address %zu, which an operation of warp %d that nobody has waited for reads", c * 16, k);
      race(warp, in, "writes", c * 16, k);
    }
  }
}

/// Another lane of this warp did it, and no bar.warp.sync is between. Lanes of one instruction may meet.
void beside_lanes(const Warp& warp, const Instruction& in, const Races::Within& last, size_t at, int lane,
                  const char* what) {
  if (!last.syncs || last.warp != warp.number || last.syncs != warp.syncs || last.step == warp.step) return;
  if (last.lane == lane && lane != ALL_LANES) return;
  fault("RACE", warp, in, "%s shared address %zu that another lane of its warp touched, with no bar.warp.sync between",
        what, at);
}
Races::Within now(Warp& warp, int lane) {
  warp.touching |= lane == ALL_LANES ? ~0u : 1u << lane;
  return {warp.syncs, warp.step, u8(warp.number), u8(lane)};
}

}  // namespace

void note_read(Warp& warp, const Instruction& in, u32 address, u32 bytes, int lane) {
  Races& races = warp.block->races;
  if (!races.on) return;
  const Span span = granules(races, address, bytes);
  for (size_t g = span.first; g <= span.last; g++) {
    behind_write(warp, in, races, g, "reads", false);
    if (races.writer[g] == warp.number) beside_lanes(warp, in, races.wrote[g], g << races.shift, lane, "reads");
    races.read[g * size_t(races.warps) + size_t(warp.number)] = warp.seen.at[warp.number];
    Races::Within& last = races.looked[g];
    const bool others = last.warp == warp.number && last.syncs == warp.syncs && last.lane != lane;
    last = now(warp, others ? int(ALL_LANES) : lane);
  }
}

void note_write(Warp& warp, const Instruction& in, u32 address, u32 bytes, int lane) {
  Races& races = warp.block->races;
  if (!races.on) return;
  const Span span = granules(races, address, bytes);
  behind_fetches(warp, in, races, address, bytes);
  for (size_t g = span.first; g <= span.last; g++) {
    behind_write(warp, in, races, g, "writes", false);
    behind_reads(warp, in, races, g);
    if (races.writer[g] == warp.number) beside_lanes(warp, in, races.wrote[g], g << races.shift, lane, "writes");
    beside_lanes(warp, in, races.looked[g], g << races.shift, lane, "writes");
    races.wrote[g] = now(warp, lane);
    races.write[g] = warp.seen.at[warp.number];
    races.writer[g] = u8(warp.number);
    races.generic[g] = 1;
  }
}

void note_remote(Warp& warp, const Instruction& in, Block& target, u32 address, u32 bytes) {
  warp.stored = true;
  Races& races = target.races;
  if (!races.on) return;
  if (warp.cluster_waits == 0)
    fault("RACE", warp, in, "stores to another block that may not have begun: no barrier.cluster is before");
  const auto knows = [&](int who, u32 epoch) {
    if (&target == warp.block) return warp.seen.at[who] >= epoch;
    if (!warp.seen.blocks) return epoch == 0;
    const auto found = warp.seen.blocks->find(target.number);
    return epoch == 0 || (found != warp.seen.blocks->end() && found->second[size_t(who)] >= epoch);
  };
  const Span span = granules(races, address, bytes);
  for (size_t g = span.first; g <= span.last; g++) {
    const int who = races.writer[g];
    const bool known = who == REMOTE ? races.write[g] <= warp.cluster_waits : knows(who, races.write[g]);
    if (!known) race(warp, in, "stores of the cluster to", g << races.shift, who);
    for (int k = 0; k < races.warps; k++)
      if (!knows(k, races.read[g * size_t(races.warps) + size_t(k)]))
        race(warp, in, "stores of the cluster to", g << races.shift, k);
    races.write[g] = warp.cluster_waits + 1;
    races.writer[g] = REMOTE;
    races.generic[g] = 1;
  }
  for (size_t c = address / 16; c <= (address + bytes - 1) / 16; c++)
    for (int k = 0; k < races.warps; k++) {
      const u32 fetched = races.fetched[c * size_t(races.warps) + size_t(k)];
      if (fetched & IN_FLIGHT || !knows(int(FETCHES) + k, fetched))
        fault("RACE", warp, in, "stores of the cluster to shared address %zu, which an operation of warp %d reads",
              c * 16, k);
    }
}

void note_fetch(Warp& warp, const Instruction& in, u32 address, u32 bytes, u32 tag) {
  Races& races = warp.block->races;
  if (!races.on) return;
  const Span span = granules(races, address, bytes);
  for (size_t g = span.first; g <= span.last; g++) {
    behind_write(warp, in, races, g, "reads", false);
    behind_proxy(warp, in, races, g, "reads");
  }
  for (size_t c = address / 16; c <= (address + bytes - 1) / 16; c++)
    races.fetched[c * size_t(races.warps) + size_t(warp.number)] = IN_FLIGHT | tag;
}

void note_fetched(Warp& warp, u32 address, u32 bytes, u32 tag) {
  Races& races = warp.block->races;
  if (!races.on) return;
  for (size_t c = address / 16; c <= (address + bytes - 1) / 16; c++) {
    u32& held = races.fetched[c * size_t(races.warps) + size_t(warp.number)];
    if (held == (IN_FLIGHT | tag)) held = warp.seen.at[FETCHES + warp.number];
  }
}

void note_copied(Warp& warp, const Instruction& in, u32 address, u32 bytes, int agent, u32 epoch, bool async_proxy) {
  Races& races = warp.block->races;
  if (!races.on || !bytes) return;
  const Span span = granules(races, address, bytes);
  behind_fetches(warp, in, races, address, bytes);
  for (size_t g = span.first; g <= span.last; g++) {
    behind_write(warp, in, races, g, "writes", true);
    if (async_proxy) behind_proxy(warp, in, races, g, "writes");
    behind_reads(warp, in, races, g);
    races.write[g] = epoch;
    races.writer[g] = u8(agent);
    races.generic[g] = !async_proxy;
  }
}

}  // namespace ptx
