// SPDX-License-Identifier: MIT
// Size of a team of workers, and the units that a team owns: the plan that order.h walks by.
#pragma once
#include <stdint.h>

namespace tilekiln::cuda::fmha_bwd {

// Fields as in Params.
struct Plan {
  int team, passes, units, team_units, lists, partials, turn;
  int workers;     // CTAs: the teams' together
  int key_shares;  // of a key head
  bool apart;      // kApart
};

struct PlanShape {
  int64_t heads;            // key heads of all sequences
  int64_t group;            // query heads of one
  int64_t rows, keys;       // of a head: query rows, in whole tiles; keys
  int hdim;                 // of the kernel
  int tile_rows, key_rows;  // of its query tile and its key tile
  bool masked, paired;
  int workers;        // at most
  int64_t sum_bytes;  // of dK and dV of shares in fp32, at most
};

// Fitted to an H100.
constexpr double step_us = 2.4, sum_bytes_per_us = 3e6;
constexpr double end_of_share_us = 7;  // a unit's sums of dK and dV go out

constexpr int64_t parts(int64_t all, int64_t each) { return (all + each - 1) / each; }

// The most teams that share a head: 1 + (r + passes - 1) / team_units for the largest remainder r that a head begins
// at.
constexpr int64_t partials_of(int64_t heads, int64_t passes, int64_t team_units) {
  const int64_t limit = 1 + (team_units - 1 + passes - 1) / team_units;
  int64_t most = 1, begin = 0;
  for (int64_t h = 0; h < heads && h < team_units && most < limit; ++h) {  // from team_units on it comes again
    const int64_t teams = 1 + (begin + passes - 1) / team_units;
    if (teams > most) most = teams;
    begin = (begin + passes) % team_units;
  }
  return most;
}

// A plan and its estimated time.
struct RatedPlan {
  Plan plan;
  double us;
};

// The best plan where the `of.group` query heads of a key head, or of a share, are walked together; `grouped`: the call
// has more query heads than key heads. Least estimated time: rounds times steps, up to 15 % more where the heads in
// flight leave L2, and the sums' traffic. Neighbours in the order are kept two steps apart or more (four in long causal
// calls), so that in the steady state nobody waits; one where that would leave L2 and a pair's tiles have partials of
// their own. No keys: no workers.
inline RatedPlan plan_whole(const PlanShape& of, bool grouped) {
  constexpr int64_t l2_bytes = 40 << 20;  // q, dout and fp32 dq of the heads in flight
  const int64_t tile_rows = of.tile_rows, key_rows = of.key_rows;
  const int64_t rows = of.group * of.rows, steps = parts(rows, tile_rows), tiles = parts(of.keys, key_rows);
  const int64_t lists = of.paired ? parts(tiles, 2) : tiles;
  Plan best = {1, 1, 0, 1, 0, 1, 0, 0, 1, false};
  if (lists == 0 || of.heads == 0) return {best, 0};
  const bool far = of.paired && of.hdim == 128 && tiles >= 128;
  // Rows and sums of the heads in flight leave L2 with two steps between neighbours. With one there are half as many,
  // but firsts and seconds of pairs come to the last rows faster than adds follow each other.
  const bool apart = of.paired && of.hdim > 128 && key_rows < 2 * tile_rows;
  const int64_t gap = far ? 4 : apart ? 1 : 2;
  // A worker's time from a pair's first tile to its second: sums are written out, keys and values come. Too little, and
  // all wait for whoever has just turned round.
  const int turn = !of.paired ? 0 : of.hdim <= 128 ? 2 : tiles > 32 ? 4 : 6;
  int64_t most_team = of.workers;
  if (!of.masked && steps / gap < most_team) most_team = steps / gap > 1 ? steps / gap : 1;
  // Query heads that a team has in flight: a circle goes over all of them, and short tiles of pairs are through with
  // one long before the long ones are.
  const double heads_in_flight = !of.masked ? static_cast<double>(of.group) : of.paired ? 0.5 + 0.5 * of.group : 1.0;
  int64_t passes = 1;
  if (of.masked) passes = parts(gap * tile_rows, key_rows) < lists ? parts(gap * tile_rows, key_rows) : lists;
  double least = 0;
  for (; passes <= lists; ++passes) {
    const int64_t team = parts(lists, passes);
    if (team > most_team) continue;
    const int64_t units = of.heads * passes, team_units = parts(units, of.workers / team);
    const int64_t partials = partials_of(of.heads, passes, team_units) * (1 + apart), teams = parts(units, team_units);
    double spill = teams * rows * of.hdim * 8 > l2_bytes ? 1.15 : 1.0;
    if (grouped) {
      const double heads = static_cast<double>(team_units < passes ? parts(teams * team_units, passes) : teams);
      const double over = heads * heads_in_flight * static_cast<double>(of.rows * of.hdim * 8) / l2_bytes - 1;
      spill = 1 + 0.15 * (over < 0 ? 0 : over > 3 ? 1 : over / 3);
    }
    const double cost = static_cast<double>(team_units * (steps + 2 * of.paired)) * step_us * spill +
                        static_cast<double>(partials * of.heads * rows * of.hdim * 4) / sum_bytes_per_us;
    if (best.workers != 0 && cost >= least) continue;
    least = cost;
    best = {static_cast<int>(team),
            static_cast<int>(passes),
            static_cast<int>(units),
            static_cast<int>(team_units),
            static_cast<int>(lists),
            static_cast<int>(partials),
            turn,
            static_cast<int>(teams * team),
            1,
            apart};
  }
  return {best, least};
}

// The best plan over all ways to share out the query heads of a key head. Shares fill a device that has more
// multiprocessors than the key heads have lists, and keep walks together in L2; each costs a write and a read of dK and
// dV in fp32. The plan belongs to the problem: the same shape and workers give the same sums.
inline Plan plan_of(const PlanShape& of) {
  RatedPlan best = plan_whole(of, of.group > 1);
  if (of.rows == 0) return best.plan;  // nothing but zeros in dK and dV
  for (int64_t shares = 2; shares <= of.group; ++shares) {
    if (of.group % shares != 0) continue;
    PlanShape shared = of;
    shared.heads = of.heads * shares;
    shared.group = of.group / shares;
    RatedPlan rated = plan_whole(shared, true);
    // dK and dV in fp32, written and read.
    const int64_t bytes = shared.heads * parts(of.keys, of.key_rows) * of.key_rows * of.hdim * 16;
    if (bytes / 2 > of.sum_bytes) continue;
    rated.us += static_cast<double>(bytes) / sum_bytes_per_us + rated.plan.team_units * end_of_share_us;
    if (rated.us >= best.us) continue;
    best = rated;
    best.plan.key_shares = static_cast<int>(shares);
  }
  return best.plan;
}

}  // namespace tilekiln::cuda::fmha_bwd
