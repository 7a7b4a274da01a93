// SPDX-License-Identifier: MIT
// The schedule of key tiles over workers, and the order in which the tiles' shares of dQ are added: the same in every
// run.
//
// Workers (one CTA a multiprocessor, all resident) stand in teams of `team`. The lists of a key head are its key tiles,
// or under a causal mask the pairs {i, key_tiles - 1 - i}, all of one length. Worker j of a team owns the `passes`
// lists from j passes on; unit u of a head is everyone's u-th list, and a team owns `team_units` units in a row of the
// units of all heads. All units of a head that one team owns add into one fp32 partial, or (kApart) a pair's second
// tiles into one and the others into another.
//
// The query heads of a key head are walked together, or in `key_shares` shares of equal size, which are heads to the
// plan: each has the key tiles for itself, sums dK and dV of its own in fp32, and `convert` adds the shares' sums in
// their order.
//
// A list walks over the query tiles that see its keys, for each query head of the share in turn; a step is (head in
// share g, m), numbered M = g query_tiles + m. Its ideal arrival is its place in the list: without a mask the walk is a
// circle that worker j starts j / team of the way round; a pair's first tile goes upwards from its diagonal, its second
// downwards; else upwards. The adds to M go in the order (unit, arrival, key tile). `rank` = how many go before; a
// counter says how many are done. The order is a total one that every worker follows, so nobody waits for ever; it
// depends on the shape and the plan, never on time.
//
// Packed sequences are planned by the longest one; a shorter sequence has fewer tiles and lists of them, in the same
// order.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/params.h"
#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda::fmha_bwd {

// One sequence: its tiles, its lists, and the key under row 0 of the diagonal.
struct Extent { int seqlen_q, seqlen_k, query_tiles, key_tiles, lists, shift; };

// A key tile's turn. It walks the query tiles [begin, end) of `group` heads.
struct Turn {
  Extent of;
  int share;               // b shares + the share
  int b, head;             // its sequence, and its first query head
  int tile, list, worker;  // key tile; its list; the worker's place in the team
  int pass, first_pass;    // the head's units first_pass .. pass - 1 have added into this partial before
  int partial;
  int begin, end, start, length, direction;  // start: the first step of a circle
};

// The host has not always seen these numbers, but knows the most; and no sequence takes the rows, and so the tiles, of
// the next.
TILEKILN_DEVICE int length(const int* seqlen, const int* cu_seqlens, const int* seqstart, int b, int most) {
  const int said = seqlen ? seqlen[b] : cu_seqlens ? cu_seqlens[b + 1] - cu_seqlens[b] : most;
  const int room = seqstart ? seqstart[b + 1] - seqstart[b] : most;
  return max(min(min(said, room), most), 0);
}

// The first row of sequence b in packed tensors.
TILEKILN_DEVICE int start_q(const Params& p, int b) {
  return !(p.features & kGroup) ? 0 : p.seqstart_q ? p.seqstart_q[b] : b * p.rows_q;
}
TILEKILN_DEVICE int start_k(const Params& p, int b) {
  return !(p.features & kGroup) ? 0 : p.seqstart_k ? p.seqstart_k[b] : b * p.rows_k;
}

// The number of query tile m of head h of sequence b. Sequences, packed or not, have tiles of their own.
template <int kQueryRows> TILEKILN_DEVICE int64_t tile_of(const Params& p, int b, int h, int m) {
  if (!(p.features & kGroup)) return (int64_t(b) * p.nhead_q + h) * p.query_tiles + m;
  return int64_t(h) * p.head_tiles + start_q(p, b) / kQueryRows + b + m;
}

// The extent of sequence b, whatever the mode.
template <int kQueryRows, int kKeys> TILEKILN_DEVICE Extent extent_of(const Params& p, int b) {
  if (!(p.features & kGroup)) return {p.seqlen_q_most, p.seqlen_k_most, p.query_tiles, p.key_tiles, p.lists, p.shift};
  Extent e;
  e.seqlen_q = length(p.seqlen_q, p.cu_seqlens_q, p.seqstart_q, b, p.seqlen_q_most);
  e.seqlen_k = length(p.seqlen_k, p.cu_seqlens_k, p.seqstart_k, b, p.seqlen_k_most);
  e.query_tiles = (e.seqlen_q + kQueryRows - 1) / kQueryRows;
  e.key_tiles = (e.seqlen_k + kKeys - 1) / kKeys;
  e.lists = p.features & kPaired ? (e.key_tiles + 1) / 2 : e.key_tiles;
  e.shift = p.features & kBottomRight ? e.seqlen_k - e.seqlen_q : 0;
  return e;
}

// The key head of a share.
TILEKILN_DEVICE int key_head(const Params& p, int share) { return share / p.key_shares; }

// kPacked: sequences may be packed; without it their extents are parameters, which take no registers.
template <int kQueryRows, int kKeys, bool kPacked> struct Order {
  const Params& p;
  int group;  // query heads of a share

  __device__ __forceinline__ explicit Order(const Params& row) : p(row), group(row.nhead_q / row.shares) {}

  // Step from a tile of one query head to that of the next.
  __device__ __forceinline__ int64_t head_tiles() const { return p.head_tiles; }
  __device__ __forceinline__ int query_tiles(const Turn& t) const { return kPacked ? t.of.query_tiles : p.query_tiles; }
  __device__ __forceinline__ int key_tiles(const Turn& t) const { return kPacked ? t.of.key_tiles : p.key_tiles; }
  __device__ __forceinline__ int lists(const Turn& t) const { return kPacked ? t.of.lists : p.lists; }
  __device__ __forceinline__ int shift(const Turn& t) const { return kPacked ? t.of.shift : p.shift; }
  __device__ __forceinline__ int seqlen_k(const Turn& t) const { return kPacked ? t.of.seqlen_k : p.seqlen_k_most; }

  // The query tiles that see key tile n: keys n kKeys .. of rows i with i + shift - left <= key <= i + shift + right.
  // Keys below sink_keys are seen from any distance.
  __device__ __forceinline__ int begin_of(const Turn& t, int n) const {
    const int row = n * kKeys - shift(t) - p.right;
    return row > 0 ? min(row / kQueryRows, query_tiles(t)) : 0;
  }
  __device__ __forceinline__ int end_of(const Turn& t, int n) const {
    if (n * kKeys < p.sink_keys) return query_tiles(t);
    const int row = min(n * kKeys + kKeys, seqlen_k(t)) - 1 - shift(t) + p.left, begin = begin_of(t, n);
    return row < 0 ? begin : max(min(row / kQueryRows + 1, query_tiles(t)), begin);
  }

  __device__ __forceinline__ int turns() const {
    const int units = max(0, min(p.team_units, p.units - int(blockIdx.x) / p.team * p.team_units));
    return uniform(p.features & kPaired ? 2 * units : units);
  }

  // Turn x of this CTA; false: it has none there.
  __device__ __forceinline__ bool turn(int x, Turn& t) const {
    const bool paired = p.features & kPaired;
    const int team = blockIdx.x / p.team, unit = team * p.team_units + (paired ? x >> 1 : x);
    t.share = uniform(unit / p.passes);
    t.b = uniform(t.share / p.shares);
    t.head = uniform((t.share - t.b * p.shares) * group);
    if constexpr (kPacked) {
      const Extent e = extent_of<kQueryRows, kKeys>(p, t.b);
      t.of = {uniform(e.seqlen_q),  uniform(e.seqlen_k), uniform(e.query_tiles),
              uniform(e.key_tiles), uniform(e.lists),    uniform(e.shift)};
    }
    t.pass = uniform(unit - t.share * p.passes);
    t.worker = uniform(blockIdx.x - team * p.team);
    t.list = uniform(t.worker * p.passes + t.pass);
    t.first_pass = uniform(max(team * p.team_units, t.share * p.passes) - t.share * p.passes);
    const bool second = paired && x & 1;
    const int partial = team - t.share * p.passes / p.team_units;
    t.partial = uniform(p.features & kApart ? 2 * partial + second : partial);
    t.tile = uniform(second ? key_tiles(t) - 1 - t.list : t.list);
    t.begin = uniform(begin_of(t, t.tile));
    t.end = uniform(end_of(t, t.tile));
    t.length = uniform(group * (t.end - t.begin));
    t.direction = uniform(second ? -1 : 1);
    t.start = uniform(p.features & kMask ? 0 : (t.length - t.worker * t.length / p.team) % max(t.length, 1));
    return t.list < lists(t) && !(second && t.tile == t.list);
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

  // When a walk upwards over [begin, end), and a pair's second tile over [low, query_tiles) after a first of `length`
  // steps, come to (g, m).
  __device__ __forceinline__ int upwards(int begin, int end, int g, int m) const {
    return g * (end - begin) + m - begin;
  }
  __device__ __forceinline__ int downwards(const Turn& t, int length, int low, int g, int m) const {
    return length + p.turn + (group - 1 - g) * (query_tiles(t) - low) + query_tiles(t) - 1 - m;
  }

  // Workers with a list in a unit.
  __device__ __forceinline__ int workers(const Turn& t, int unit) const {
    return max(0, lists(t) - unit + p.passes - 1) / p.passes;
  }

  // Number of adds into (partial, g, m) that go before this turn's. The whole warp.
  __device__ __forceinline__ int rank(const Turn& t, int g, int m, int lane) const {
    if (!(p.features & kMask)) {
      // Worker j comes to M at (M + j round / team) mod round: those from `first` on, who start behind M, before the
      // others.
      const int round = group * query_tiles(t), at = g * query_tiles(t) + m, here = workers(t, t.pass);
      const int first = min(here, at > 0 ? ((round - at) * p.team + round - 1) / round : p.team);
      int count = t.worker >= first ? t.worker - first : here - first + t.worker;
      for (int unit = t.first_pass; unit < t.pass; ++unit) count += workers(t, unit);
      return count;
    }
    int count = 0;
    if (p.features & kPaired) {  // a warp has about a step's time for this: no division, nothing worked out twice
      const int tiles = query_tiles(t), begin = begin_of(t, t.list);
      const int mine =
          t.direction > 0 ? upwards(begin, tiles, g, m) : downwards(t, group * (tiles - begin), t.begin, g, m);
      const bool together = !(p.features & kApart), firsts = together || t.direction > 0;
      for (int unit = t.first_pass; unit <= t.pass; ++unit) {
        const bool earlier = unit < t.pass;
        for (int j = lane, i = j * p.passes + unit; i < lists(t) && j < p.team; j += 32, i += 32 * p.passes) {
          const int from = begin_of(t, i), n = key_tiles(t) - 1 - i, low = begin_of(t, n);
          if (from > m) continue;
          const int at = upwards(from, tiles, g, m);
          count += firsts && (earlier || at < mine || (at == mine && i < t.tile));
          if (n <= i || low > m || !(together || t.direction < 0)) continue;
          const int then = downwards(t, group * (tiles - from), low, g, m);
          count += earlier || then < mine || (then == mine && n < t.tile);
        }
      }
      return __reduce_add_sync(~0u, count);
    }
    const int mine = upwards(t.begin, t.end, g, m);
    for (int unit = t.first_pass; unit <= t.pass; ++unit) {
      for (int j = lane, i = j * p.passes + unit; i < lists(t) && j < p.team; j += 32, i += 32 * p.passes) {
        const int from = begin_of(t, i), until = end_of(t, i), at = upwards(from, until, g, m);
        count += m >= from && m < until && (unit < t.pass || at < mine || (at == mine && i < t.tile));
      }
    }
    return __reduce_add_sync(~0u, count);
  }
};

constexpr int kMostPolls = 1 << 22;  // of a counter before the kernel traps: a hang would take the device along

// Waits until `before` adds are done. One thread.
TILEKILN_DEVICE void await_turn(const unsigned* counter, int before) {
  int polls = 0;
  while (load_acquired(counter) != unsigned(before)) {
    if (++polls > kMostPolls) __trap();
  }
}

// One more add is done. One thread, after the others' barrier.
TILEKILN_DEVICE void end_turn(unsigned* counter) { add_released(counter); }

}  // namespace tilekiln::cuda::fmha_bwd
