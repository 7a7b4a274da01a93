// Who works on which key tile when, and in which order the tiles' shares of dQ are added: the same order in every run.
//
// Workers (one CTA a multiprocessor, all resident) stand in teams of `team`. The lists of a key head are its key tiles, or under
// a causal mask the pairs {i, key_tiles - 1 - i}, all of one length. Worker j of a team owns the `passes` lists from j passes on;
// unit u of a head is everyone's u-th list, and a team owns `team_units` units in a row of the units of all heads. All units of
// a head that one team owns add into one fp32 slot.
//
// A list walks over the query tiles that see its keys, for each query head of the group in turn; a step is (head in group g, m),
// numbered M = g query_tiles + m. Its ideal arrival is its place in the list: without a mask the walk is a circle that worker j
// starts j / team of the way round; a pair's first tile goes upwards from its diagonal, its second downwards; else upwards. The
// adds to M go in the order (unit, arrival, key tile). `rank` = how many go before; a counter says how many are done. The order is
// a total one that every worker follows, so nobody waits for ever; it depends on the shape and the plan, never on time.
#pragma once

#include "kernels/backends/cuda/ptx.h"
#include "kernels/fmha_bwd_dq_dk_dv/cuda/row.h"

namespace tilekiln::cuda::fmha_bwd {

// A key tile's turn. It walks the query tiles [begin, end) of `group` heads.
struct Turn {
  int head;                // b nhead_k + h_k
  int tile, list, worker;  // key tile; its list; the worker's place in the team
  int pass, first_pass;    // the head's units first_pass .. pass - 1 have added into this slot before
  int slot;
  int begin, end, start, length, direction;  // start: the first step of a circle
};

template <int kQueryRows, int kKeys> struct Order {
  const Row& p;
  int group;  // query heads that share a key head

  __device__ __forceinline__ explicit Order(const Row& row) : p(row), group(row.nhead_q / row.nhead_k) {}

  // The query tiles that see key tile n: keys n kKeys .. of rows i with i + shift - left <= key <= i + shift + right.
  __device__ __forceinline__ int begin_of(int n) const {
    const int row = n * kKeys - p.shift - p.right;
    return row > 0 ? min(row / kQueryRows, p.query_tiles) : 0;
  }
  __device__ __forceinline__ int end_of(int n) const {
    const int row = min(n * kKeys + kKeys, p.seqlen_k) - 1 - p.shift + p.left;
    return row < 0 ? begin_of(n) : max(min(row / kQueryRows + 1, p.query_tiles), begin_of(n));
  }

  __device__ __forceinline__ int turns() const {
    const int units = max(0, min(p.team_units, p.units - int(blockIdx.x) / p.team * p.team_units));
    return uniform(p.features & kPaired ? 2 * units : units);
  }

  // Turn x of this CTA; false: it has none there.
  __device__ __forceinline__ bool turn(int x, Turn& t) const {
    const bool paired = p.features & kPaired;
    const int team = blockIdx.x / p.team, unit = team * p.team_units + (paired ? x >> 1 : x);
    t.head = uniform(unit / p.passes);
    t.pass = uniform(unit - t.head * p.passes);
    t.worker = uniform(blockIdx.x - team * p.team);
    t.list = uniform(t.worker * p.passes + t.pass);
    t.first_pass = uniform(max(team * p.team_units, t.head * p.passes) - t.head * p.passes);
    t.slot = uniform(team - t.head * p.passes / p.team_units);
    const bool second = paired && x & 1;
    t.tile = uniform(second ? p.key_tiles - 1 - t.list : t.list);
    t.begin = uniform(begin_of(t.tile));
    t.end = uniform(end_of(t.tile));
    t.length = uniform(group * (t.end - t.begin));
    t.direction = uniform(second ? -1 : 1);
    t.start = uniform(p.features & kMask ? 0 : (t.length - t.worker * t.length / p.team) % max(t.length, 1));
    return t.list < p.lists && !(second && t.tile == t.list);
  }

  // The head in group and the query tile of a turn's first step, and of the next one.
  __device__ __forceinline__ void first_step(const Turn& t, int& g, int& m) const {
    const int width = t.end - t.begin, at = t.direction < 0 ? t.length - 1 : t.start;
    g = width > 0 ? at / width : 0;
    m = t.begin + at - g * width;
  }
  __device__ __forceinline__ void next_step(const Turn& t, int& g, int& m) const {
    m += t.direction;
    if (m == t.end) {
      m = t.begin;
      if (++g == group) g = 0;
    }
    if (m < t.begin) m = t.end - 1, --g;
  }

  // When a walk upwards over [begin, end), and a pair's second tile over [low, query_tiles) after a first of `length` steps, come
  // to (g, m).
  __device__ __forceinline__ int upwards(int begin, int end, int g, int m) const {
    return g * (end - begin) + m - begin;
  }
  __device__ __forceinline__ int downwards(int length, int low, int g, int m) const {
    return length + p.turn + (group - 1 - g) * (p.query_tiles - low) + p.query_tiles - 1 - m;
  }

  // Workers with a list in a unit.
  __device__ __forceinline__ int workers(int unit) const { return (p.lists - unit + p.passes - 1) / p.passes; }

  // How many adds into (slot, g, m) go before this turn's. The whole warp.
  __device__ __forceinline__ int rank(const Turn& t, int g, int m, int lane) const {
    if (!(p.features & kMask)) {
      // Worker j comes to M at (M + j round / team) mod round: those from `first` on, who start behind M, before the others.
      const int round = group * p.query_tiles, at = g * p.query_tiles + m, here = workers(t.pass);
      const int first = min(here, at > 0 ? ((round - at) * p.team + round - 1) / round : p.team);
      int count = t.worker >= first ? t.worker - first : here - first + t.worker;
      for (int unit = t.first_pass; unit < t.pass; ++unit) count += workers(unit);
      return count;
    }
    int count = 0;
    if (p.features & kPaired) {  // a warp has about a step's time for this: no division, nothing worked out twice
      const int tiles = p.query_tiles, begin = begin_of(t.list);
      const int mine =
          t.direction > 0 ? upwards(begin, tiles, g, m) : downwards(group * (tiles - begin), t.begin, g, m);
      for (int unit = t.first_pass; unit <= t.pass; ++unit) {
        const bool earlier = unit < t.pass;
        for (int j = lane, i = j * p.passes + unit; i < p.lists && j < p.team; j += 32, i += 32 * p.passes) {
          const int from = begin_of(i), n = p.key_tiles - 1 - i, low = begin_of(n);
          if (from > m) continue;
          const int at = upwards(from, tiles, g, m);
          count += earlier || at < mine || (at == mine && i < t.tile);
          if (n <= i || low > m) continue;
          const int then = downwards(group * (tiles - from), low, g, m);
          count += earlier || then < mine || (then == mine && n < t.tile);
        }
      }
      return __reduce_add_sync(~0u, count);
    }
    const int mine = upwards(t.begin, t.end, g, m);
    for (int unit = t.first_pass; unit <= t.pass; ++unit) {
      for (int j = lane, i = j * p.passes + unit; i < p.lists && j < p.team; j += 32, i += 32 * p.passes) {
        const int from = begin_of(i), until = end_of(i), at = upwards(from, until, g, m);
        count += m >= from && m < until && (unit < t.pass || at < mine || (at == mine && i < t.tile));
      }
    }
    return __reduce_add_sync(~0u, count);
  }
};

}  // namespace tilekiln::cuda::fmha_bwd
