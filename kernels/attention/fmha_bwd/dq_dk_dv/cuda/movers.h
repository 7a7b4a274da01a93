// SPDX-License-Identifier: MIT
// The loader and the writers of the Hopper backward, and the shared memory between them and the warpgroups that compute.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/passes.h"

namespace tilekiln::cuda::fmha_bwd {

constexpr int kStages = kHdim == 128 ? 3 : 2, kDsStages = kWide ? 2 : kHdim == 128 ? 3 : 4, kThreads = 512;
constexpr int kWriters = kHdim == 64 ? 2 : 3;  // warps; a third costs 64 columns 2 %

// P^T before dropout, in the order of threads, from one warpgroup to the next (wide.h).
template <bool> struct Weights {
  __device__ __forceinline__ void init() {}
};
template <> struct Weights<true> {
  uint4 word[2][kQueryRows / 16][128];
  uint64_t full[2], empty[2];

  __device__ __forceinline__ void init() {
    for (int i = 0; i < 2; ++i) barrier_init(full[i], 4), barrier_init(empty[i], 4);
  }
};

struct Shared {
  uint16_t k[kKeys * kHdim], v[kKeys * kHdim];
  uint16_t q[kStages][kQueryRows * kHdim], dout[kStages][kQueryRows * kHdim];
  uint16_t ds[kDsStages][kKeys * kQueryRows];
  Weights<kWide> weights;
  alignas(16) float lse[kStages][kQueryRows], delta[kStages][kQueryRows];
  float* dq_to[kWriters];  // by writer: where dQ is to be added
  int dq_first[kWriters];  // nothing was there before
  uint64_t kv_full, kv_empty, q_full[kStages], q_empty[kStages], dout_full[kStages], dout_empty[kStages];
  uint64_t ds_full[kDsStages], ds_empty[kDsStages], dq_full[kWriters], dq_empty[kWriters];

  __device__ __forceinline__ void init() {
    barrier_init(kv_full, 1), barrier_init(kv_empty, 12);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(q_full[i], 1), barrier_init(q_empty[i], 8);
      barrier_init(dout_full[i], 1), barrier_init(dout_empty[i], 8);
    }
    for (int i = 0; i < kDsStages; ++i) barrier_init(ds_full[i], kWide ? 4 : 8), barrier_init(ds_empty[i], 4);
    for (int i = 0; i < kWriters; ++i) barrier_init(dq_full[i], 4), barrier_init(dq_empty[i], 1);
    weights.init();
    barrier_init_done();
  }
};
static_assert(sizeof(Shared) <= 232448, "a block of Hopper has 227 KB of shared memory");

TILEKILN_DEVICE void jitter(uint32_t x) {
#ifdef JITTER
  x = x * 2654435761u ^ blockIdx.x * 40503u ^ uint32_t(clock64());
  x = (x ^ x >> 15) * 2246822519u;
  x ^= x >> 13;
  if ((x & 7) == 0) __nanosleep(x % 20000);
#endif
}

// The coordinates of a sequence's row 0 in a tensor map (coordinates.h).
struct Place { int row, sequence, batch; };

TILEKILN_DEVICE void load_panels(const TensorMap& map, const void* to, int rows, uint64_t& full, int row, int h,
                                 const Place& at) {
#pragma unroll
  for (int i = 0; i < kPanels; ++i)
    tensor_load(shared_address(to) + i * rows * 128, map, full, 64 * i, at.row + row, at.sequence, at.batch, h);
}

template <bool kPacked> TILEKILN_DEVICE void load(const Row& p, Shared& s, int lane) {
  const Order<kQueryRows, kKeys, kPacked> order(p);
  uint32_t step = 0, turns = 0;
  Turn t;
  for (int x = 0; x < order.turns(); ++x) {
    if (!order.turn(x, t)) continue;
    if (lane == 0) {
      const int b = t.share / p.shares, share = t.share - b * p.shares, head_k = key_head(p, share);
      wait(s.kv_empty, (turns & 1) ^ 1);
      arrive_expecting(s.kv_full, 2 * kKeys * kHdim * 2);
      Place keys{0, 0, b}, queries{0, 0, b};
      if constexpr (kPacked) {
        keys = {kFar - t.of.seqlen_k, start_k(p, b) + t.of.seqlen_k, kFar};
        queries = {kFar - t.of.seqlen_q, start_q(p, b) + t.of.seqlen_q, kFar};
      }
      load_panels(p.k, s.k, kKeys, s.kv_full, t.tile * kKeys, head_k, keys);
      load_panels(p.v, s.v, kKeys, s.kv_full, t.tile * kKeys, head_k, keys);
      const int64_t first_tile = tile_of<kQueryRows>(p, b, share * order.group, 0);
      int g, m;
      order.first_step(t, g, m);
      for (int c = 0; c < t.length; ++c, ++step, order.next_step(t, g, m)) {
        const int slot = step % kStages, head = share * order.group + g;
        const uint32_t phase = (step / kStages & 1) ^ 1, bytes = kQueryRows * (2 * kHdim + 4);
        const int64_t rows = (first_tile + g * order.head_tiles() + m) * kQueryRows;
        jitter(step);
        wait(s.q_empty[slot], phase);
        arrive_expecting(s.q_full[slot], bytes);
        load_panels(p.q, s.q[slot], kQueryRows, s.q_full[slot], m * kQueryRows, head, queries);
        bulk_load(shared_address(s.lse[slot]), p.lse_log2 + rows, kQueryRows * 4, s.q_full[slot]);
        wait(s.dout_empty[slot], phase);
        arrive_expecting(s.dout_full[slot], bytes);
        load_panels(p.dout, s.dout[slot], kQueryRows, s.dout_full[slot], m * kQueryRows, head, queries);
        bulk_load(shared_address(s.delta[slot]), p.delta + rows, kQueryRows * 4, s.dout_full[slot]);
      }
    }
    ++turns;
    __syncwarp();
  }
}

// The writers take the dQ of steps in turn: one waits for its add to be done while others look for the next turns.
template <bool kPacked> TILEKILN_DEVICE void write_dq(const Row& p, Shared& s, int writer, int lane) {
  const Order<kQueryRows, kKeys, kPacked> order(p);
  uint32_t step = 0, phase = 0;
  int others = writer;  // steps until this writer's next one
  Turn t;
  for (int x = 0; x < order.turns(); ++x) {
    if (!order.turn(x, t)) continue;
    const int b = t.share / p.shares;
    const int64_t first_tile = tile_of<kQueryRows>(p, b, (t.share - b * p.shares) * order.group, 0);
    int g, m;
    order.first_step(t, g, m);
    for (int c = 0; c < t.length; ++c, ++step, order.next_step(t, g, m)) {
      if (others-- > 0) continue;
      others = kWriters - 1;
#ifdef UNORDERED
      const int before = 1;
#else
      const int before = order.rank(t, g, m, lane);
#endif
      if (lane == 0) {
        const int64_t at = (first_tile + g * order.head_tiles() + m) * p.slots + t.slot;
        float* sums = p.dq_sums + at * (kTileBytes / 4);
        unsigned* counter = p.counters + at;
        jitter(step * 3 + 1);
#ifndef UNORDERED
        if (before > 0) await_turn(counter, before);
#endif
        s.dq_to[writer] = sums;
        s.dq_first[writer] = before == 0;
        arrive(s.dq_empty[writer]);
        wait(s.dq_full[writer], phase);
        end_turn(counter);
      }
      phase ^= 1;
      __syncwarp();
    }
  }
}

}  // namespace tilekiln::cuda::fmha_bwd
