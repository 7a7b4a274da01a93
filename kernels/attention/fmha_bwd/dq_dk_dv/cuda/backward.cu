// Attention backward on Hopper for 16-bit tensors, bit-reproducible: dq, dk and dv, the latter summed over the query heads of a group.
//
//     P = exp(S - lse),  dV = P^T dO,  dP = dO V^T,  dS = P o (dP - delta),  dK = scale dS^T Q,  dQ = scale dS K
//
// With dropout P of dV and dP are dropped and scaled; with a soft cap dS is multiplied with the cap's slope 1 - tanh^2. The loop over
// query tiles has a copy for each, one for neither, and one that asks the features (`Extras`).
//
// A CTA holds a tile of 128 keys, 64 in each of two warpgroups, and walks over the query tiles that see it. S^T and dP^T have keys
// for rows, so P^T stays in registers as the first operand of dV; dS^T goes through shared memory and is the first operand of
// dK as it lies and of dQ transposed. dK and dQ of step m - 1 run under the softmax of step m, and a warpgroup waits for the
// other's dS only before dQ, so that they drift apart and one computes under the other's products. dQ leaves through shared
// memory: two writer warps add a tile each to its sum in L2, in the order of order.h.
//
// Head dims above 128 (`kWide`) leave a warpgroup room for half of the columns of dK and dV: both have the same 64 keys, work the scores
// out each for itself (7 products in place of 5) and share nothing but what is loaded. There is no room in shared memory for dQ:
// a warpgroup adds it from registers, when the writer warp, which waits for the turn, has said so.
//
// Warpgroup 0: warp 0 loads, warps 1 and 2 write dQ. The other two compute.
// All CTAs must be resident together: a writer waits for adds of others.
//
// -D: HDIM (64, 128 or 256), LOADER_REGISTERS, REGISTERS; TILEKILN_FP16 for fp16, JITTER for random sleeps in loader and writers (a test of the order);
// UNORDERED for adds in any order to sums that are zero before, to time what the order costs.
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/passes.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/scores.h"
#include "wgmma.h"

namespace tilekiln::cuda::fmha_bwd {

constexpr int kStages = 2, kThreads = 384;

// dQ on its way out, by step parity: blocks of the warpgroups, or where they are to add them.
template <bool> struct Leaving { float block[2][2][64 * 64]; };
template <> struct Leaving<true> {
  float* to[2];
  int first[2];  // nothing was there before
};

struct Shared {
  uint16_t k[kKeys * kHdim], v[kKeys * kHdim];
  uint16_t q[kStages][kQueryRows * kHdim], dout[kStages][kQueryRows * kHdim];
  uint16_t ds[2][kKeys * kQueryRows * (kWide ? 2 : 1)];  // kWide: of each warpgroup
  Leaving<kWide> dq;
  alignas(16) float lse[kStages][kQueryRows], delta[kStages][kQueryRows];
  uint64_t kv_full, kv_empty, q_full[kStages], q_empty[kStages], dout_full[kStages], dout_empty[kStages];
  uint64_t dq_full[2], dq_empty[2];
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
      const int b = t.head / p.nhead_k, head_k = t.head - b * p.nhead_k;
      wait(s.kv_empty, (turns & 1) ^ 1);
      arrive_expecting(s.kv_full, 2 * kKeys * kHdim * 2);
      Place keys{0, 0, b}, queries{0, 0, b};
      if constexpr (kPacked) {
        keys = {kFar - t.of.seqlen_k, start_k(p, b) + t.of.seqlen_k, kFar};
        queries = {kFar - t.of.seqlen_q, start_q(p, b) + t.of.seqlen_q, kFar};
      }
      load_panels(p.k, s.k, kKeys, s.kv_full, t.tile * kKeys, head_k, keys);
      load_panels(p.v, s.v, kKeys, s.kv_full, t.tile * kKeys, head_k, keys);
      const int64_t first_tile = tile_of<kQueryRows>(p, b, head_k * order.group, 0);
      int g, m;
      order.first_step(t, g, m);
      for (int c = 0; c < t.length; ++c, ++step, order.next_step(t, g, m)) {
        const int slot = step % kStages, head = head_k * order.group + g;
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

// One thread's part of an add whose turn it is. Returns when it is done.
TILEKILN_DEVICE void let_leave(Shared& s, Leaving<false>& dq, int u, uint32_t phase, float* sums, bool first) {
  wait(s.dq_full[u], phase);
  const uint32_t from = shared_address(dq.block[u]);
  if (first) {
    bulk_store(sums, from, kTileBytes);  // needs no zeros
  } else {
    bulk_add(sums, from, kTileBytes);
  }
  bulk_commit();
  bulk_wait_read();
  arrive(s.dq_empty[u]);
  bulk_wait();
  async_proxy_fence();
}
TILEKILN_DEVICE void let_leave(Shared& s, Leaving<true>& dq, int u, uint32_t phase, float* sums, bool first) {
  dq.to[u] = sums;
  dq.first[u] = first;
  arrive(s.dq_empty[u]);
  wait(s.dq_full[u], phase);
}

// Writer u owns shared buffer u, the dQ of every other step: one waits for its add to complete while the other works.
template <bool kPacked> TILEKILN_DEVICE void write_dq(const Row& p, Shared& s, int u, int lane) {
  const Order<kQueryRows, kKeys, kPacked> order(p);
  uint32_t step = 0;
  Turn t;
  for (int x = 0; x < order.turns(); ++x) {
    if (!order.turn(x, t)) continue;
    const int b = t.head / p.nhead_k;
    const int64_t first_tile = tile_of<kQueryRows>(p, b, (t.head - b * p.nhead_k) * order.group, 0);
    int g, m;
    order.first_step(t, g, m);
    for (int c = 0; c < t.length; ++c, ++step, order.next_step(t, g, m)) {
      if (int(step & 1) != u) continue;
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
        if (before > 0) {  // before the data is waited for, so that a poll is off the critical path
          await_turn(counter, before);
          async_proxy_fence();
        }
#endif
        let_leave(s, s.dq, u, step >> 1 & 1, sums, before == 0);
        end_turn(counter);
      }
      __syncwarp();
    }
  }
}

TILEKILN_DEVICE void compute(const Row& p, Shared& s, int w, int thread) {
  const Order<kQueryRows, kKeys, true> order(p);
  const int lane = thread & 31, warp = thread >> 5;
  constexpr int kColumns = kWide ? 128 : kHdim;  // of dk and dv that this warpgroup has
  const int own_keys = kWide ? 0 : w * 64;       // its first key in the tile
  float dk[kColumns / 2], dv[kColumns / 2], score[kQueryRows / 2], dq[32];
  uint32_t weight[kQueryRows / 16][4];
  uint32_t k = shared_address(s.k), v = shared_address(s.v);
  uint32_t step = 0, turns = 0;
  Turn t{};

  const auto issue_scores = [&](uint32_t keys, uint32_t rows) {  // score (64 keys, query rows) = keys rows^T
    product_fence();
#pragma unroll
    for (int i = 0; i < kHdim / 16; ++i)
      Product<kQueryRows, 0, 0>::shared(
          score, tile_descriptor(keys + i / 4 * kKeys * 128 + own_keys * 128 + i % 4 * 32, 16, 1024),
          tile_descriptor(rows + i / 4 * kQueryRows * 128 + i % 4 * 32, 16, 1024), i > 0);
    product_commit();
  };
  const auto issue_dk_dq = [&](uint32_t at) {  // dk += dS^T q; dq = dS k
    const uint32_t q = shared_address(s.q[at % kStages]), ds = shared_address(s.ds[at & 1]);
    named_sync(5 + w, 128);  // this warpgroup's dS is there, all that dk needs
    product_fence();
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i)
      Product<kColumns, 0, 1>::shared(dk,
                                      tile_descriptor(ds + i / 4 * kKeys * 128 + w * 64 * 128 + i % 4 * 32, 16, 1024),
                                      tile_descriptor(q + i * 2048, kQueryRows * 128, 1024), 1);
    product_commit();
    named_sync(2 - w + 2 * (at & 1), 256);  // and the other's
    const uint32_t block_rows = kHdim == 64 ? w * kKeys * 128 : 0, block_columns = kHdim == 64 ? 0 : w * kKeys * 128;
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      Product<64, 1, 1>::shared(dq, tile_descriptor(ds + block_rows + i * 2048, 1024, 1024),
                                tile_descriptor(k + block_columns + i * 2048, 1024, 1024), i > 0);
    product_commit();
  };
  const auto hand_over_dq =
      [&](auto& leaving,
          uint32_t at) -> void {  // registers to shared memory in the order of threads: no bank conflicts
    const int u = at & 1;
    wait(s.dq_empty[u], (at >> 1 & 1) ^ 1);
    float4* to = reinterpret_cast<float4*>(leaving.block[u][w]) + thread;
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i * 128] = make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    async_shared_fence();
    warp_arrive(s.dq_full[u], lane);
  };

  // kWide. The two blocks of dq of this warpgroup, one after another; dk += dS^T q.
  const auto issue_dk_wide = [&](uint32_t q, uint32_t ds) {
    product_fence();
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i)
      Product<kColumns, 0, 1>::shared(
          dk, tile_descriptor(ds + i * 32, 16, 1024),
          tile_descriptor(q + w * (kColumns / 64) * kQueryRows * 128 + i * 2048, kQueryRows * 128, 1024), 1);
    product_commit();
  };
  const auto issue_dq_wide = [&](uint32_t ds, int block) {
    product_fence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      Product<64, 1, 1>::shared(dq, tile_descriptor(ds + i * 2048, 1024, 1024),
                                tile_descriptor(k + (2 * w + block) * kKeys * 128 + i * 2048, 1024, 1024), i > 0);
    product_commit();
  };
  const auto add_dq = [&](auto& leaving, uint32_t at, int block) -> void {
    const int u = at & 1;
    if (block == 0) wait(s.dq_empty[u], at >> 1 & 1);
    float* const sums = *const_cast<float* volatile*>(&leaving.to[u]);
    float4* const to = reinterpret_cast<float4*>(sums + (2 * w + block) * 64 * 64) + thread;
    const bool alone = field(leaving.first[u]);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      store_or_add(alone, to + i * 128, make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]));
  };
  const auto added_dq = [&](uint32_t at) {  // asked a step later, when the adds have long been done
    __threadfence();
    warp_arrive(s.dq_full[at & 1], lane);
  };

  // One query tile. `first` is a template argument: a product in a branch makes ptxas wait for all of them.
  const auto query_tile = [&](auto first, auto extras, int g, int m) {
    // Asked anew: else every descriptor of k and v is worked out ahead, and they are more than the registers hold.
    if constexpr (kWide) step = uniform(step), k = uniform(k), v = uniform(v);
    const int slot = step % kStages;
    const uint32_t phase = step / kStages & 1;
    wait(s.q_full[slot], phase);
    issue_scores(k, shared_address(s.q[slot]));
    if constexpr (!first.value) {
      if constexpr (kWide) {
        added_dq(step - 1);
      } else {
        issue_dk_dq(step - 1);
      }
    }
    Scores<extras.value, kQueryRows, 64> scores(p, t, order.group, g, m, t.tile * kKeys + own_keys, warp * 16, lane,
                                                weight);
    scores.draw();
    if constexpr (!first.value && !kWide) {
      product_wait<2>();
    } else {
      product_wait<0>();
    }
    pin(score);
    scores.weigh(score, s.lse[slot]);
    if constexpr (!first.value && !kWide) {
      product_wait<0>();
      pin(dk);
      pin(dq);
      warp_arrive(s.q_empty[slot ^ 1], lane);
    }
    wait(s.dout_full[slot], phase);
    const uint32_t dout = shared_address(s.dout[slot]);
    if constexpr (scores.kDrops) {
#pragma unroll
      for (int i = 0; i < kQueryRows / 16; ++i) pin(weight[i]);
    }
    issue_scores(v, dout);  // dP^T
    product_fence();
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i)  // dv += P^T dout
      Product<kColumns, 0, 1>::registers(
          dv, weight[i],
          tile_descriptor(dout + (kWide ? w * 2 * kQueryRows * 128 : 0) + i * 2048, kQueryRows * 128, 1024), 1);
    product_commit();
    if constexpr (!first.value && !kWide) hand_over_dq(s.dq, step - 1);
    product_wait<1>();
    pin(score);
    const int quarter = lane >> 3, to_row = own_keys + warp * 16 + (quarter & 1) * 8 + (lane & 7);
    const uint32_t own_ds = shared_address(s.ds[step & 1]) + (kWide ? w * 64 * 128 : 0), ds = own_ds + to_row * 128;
    uint16_t* const dbias = scores.dbias();
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {
      uint32_t word[4];
      scores.differentiate(i, score, s.delta[slot], dbias, !(kWide && w != 0), word);
      store_matrices(ds + i / 4 * kKeys * 128 + ((i % 4 * 2 + (quarter >> 1)) ^ (to_row & 7)) * 16, word);
    }
    async_shared_fence();
    product_wait<0>();
    pin(dv);
    warp_arrive(s.dout_empty[slot], lane);
    if constexpr (kWide) {
      named_sync(5 + w, 128);  // this warpgroup's dS is there
      issue_dk_wide(shared_address(s.q[slot]), own_ds);
      issue_dq_wide(own_ds, 0);
      product_wait<0>();
      pin(dk);
      pin(dq);
      warp_arrive(s.q_empty[slot], lane);
      add_dq(s.dq, step, 0);
      pin(dq);
      issue_dq_wide(own_ds, 1);
      product_wait<0>();
      pin(dq);
      add_dq(s.dq, step, 1);
    } else {
      named_arrive(1 + w + 2 * (step & 1), 256);  // dS is there; by parity, for the other may be a step behind
    }
    ++step;
  };

  for (int x = 0; x < order.turns(); ++x) {
    if (!uniform(order.turn(x, t))) continue;
    step = uniform(step), turns = uniform(turns);
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) dk[i] = dv[i] = 0.f;
    pin(dk);
    pin(dv);
    wait(s.kv_full, turns & 1);
    ++turns;
    if (t.length > 0) {
      int g, m;
      order.first_step(t, g, m);
      g = uniform(g), m = uniform(m);
      const auto walk = [&](auto extras) {
        pin(dk);
        pin(dv);
        query_tile(Constant<1>{}, extras, g, m);
        for (int c = 1; c < t.length; ++c) {
          order.next_step(t, g, m);
          query_tile(Constant<0>{}, extras, g, m);
        }
      };
      switch (p.features & (kSoftcap | kAlibi | kBias | kDropout)) {
        case 0:
        case kAlibi: walk(Constant<kPlain>{}); break;
        case kSoftcap: walk(Constant<kCapped>{}); break;
        case kDropout: walk(Constant<kDropped>{}); break;
        default: walk(Constant<kGeneral>{});
      }
      if constexpr (kWide) {
        warp_arrive(s.kv_empty, lane);
        added_dq(step - 1);
      } else {
        issue_dk_dq(step - 1);
        product_wait<0>();
        pin(dk);
        pin(dq);
        warp_arrive(s.q_empty[(step - 1) % kStages], lane);
        warp_arrive(s.kv_empty, lane);
        hand_over_dq(s.dq, step - 1);
      }
    } else {
      warp_arrive(s.kv_empty, lane);
    }
    const int b = t.head / p.nhead_k, h = t.head - b * p.nhead_k, start = start_k(p, b);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = t.tile * kKeys + own_keys + warp * 16 + (lane >> 2) + 8 * half;
      const bool inside = key < t.of.seqlen_k;
      const int column = kWide ? w * kColumns : 0;
      store_row(p.dv + b * p.dv_batch + h * p.dv_head + (start + key) * p.dv_row + column, inside, p.hdim_v - column,
                lane, dv, half, p.keep_scale);
      store_row(p.dk + b * p.dk_batch + h * p.dk_head + (start + key) * p.dk_row + column, inside, p.hdim_q - column,
                lane, dk, half, p.softmax_scale);
    }
  }
}

}  // namespace tilekiln::cuda::fmha_bwd

using namespace tilekiln::cuda;

extern "C" __constant__ fmha_bwd::Build fmha_bwd_build = {fmha_bwd::kHdim,
                                                          fmha_bwd::kQueryRows,
                                                          fmha_bwd::kKeys,
                                                          fmha_bwd::kThreads,
                                                          sizeof(fmha_bwd::Shared),
#ifdef TILEKILN_FP16
                                                          1
#else
                                                          0
#endif
};

extern "C" __global__ void __launch_bounds__(fmha_bwd::kThreads, 1)
    fmha_bwd_hopper(const __grid_constant__ fmha_bwd::Row p) {
  extern __shared__ __align__(1024) char raw[];
  fmha_bwd::Shared& s = *reinterpret_cast<fmha_bwd::Shared*>(raw);
  const int warpgroup = uniform(threadIdx.x >> 7), thread = threadIdx.x & 127;
  if (threadIdx.x == 0) {
    barrier_init(s.kv_full, 1), barrier_init(s.kv_empty, 8);
    for (int i = 0; i < 2; ++i) {
      barrier_init(s.q_full[i], 1), barrier_init(s.q_empty[i], 8);
      barrier_init(s.dout_full[i], 1), barrier_init(s.dout_empty[i], 8);
      barrier_init(s.dq_full[i], 8), barrier_init(s.dq_empty[i], 1);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (warpgroup == 0) {
    fewer_registers<LOADER_REGISTERS>();
    const int warp = uniform(threadIdx.x >> 5);
    if (p.features & fmha_bwd::kGroup) {
      if (warp == 0) fmha_bwd::load<true>(p, s, thread & 31);
      if (warp == 1 || warp == 2) fmha_bwd::write_dq<true>(p, s, warp - 1, thread & 31);
    } else {
      if (warp == 0) fmha_bwd::load<false>(p, s, thread & 31);
      if (warp == 1 || warp == 2) fmha_bwd::write_dq<false>(p, s, warp - 1, thread & 31);
    }
  } else {
    more_registers<REGISTERS>();
    fmha_bwd::compute(p, s, warpgroup - 1, thread);
  }
}
