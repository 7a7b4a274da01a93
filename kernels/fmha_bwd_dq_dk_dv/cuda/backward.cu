// Attention backward on Hopper for 16-bit tensors, bit-reproducible: dq, dk and dv, the latter summed over the query heads of a group.
//
//     P = exp(S - lse),  dV = P^T dO,  dP = dO V^T,  dS = P o (dP - delta),  dK = scale dS^T Q,  dQ = scale dS K
//
// A CTA holds a tile of 128 keys, 64 in each of two warpgroups, and walks over the query tiles that see it. S^T and dP^T have keys
// for rows, so P^T stays in registers as the first operand of dV; dS^T goes through shared memory and is the first operand of
// dK as it lies and of dQ transposed. dK and dQ of step m - 1 run under the softmax of step m. dQ leaves through shared
// memory: two writer warps add a tile each to its sum in L2, in the order of order.h.
//
// Warpgroup 0: warp 0 loads, warps 1 and 2 write dQ. The other two compute.
// All CTAs must be resident together: a writer waits for adds of others.
//
// -D: HDIM (64 or 128), LOADER_REGISTERS, REGISTERS; TILEKILN_FP16 for fp16, JITTER for random sleeps in loader and writers (a test of the order).
#include "kernels/fmha_bwd_dq_dk_dv/cuda/order.h"
#include "wgmma.h"

namespace tilekiln::cuda::fmha_bwd {

constexpr int kHdim = HDIM, kKeys = 128, kQueryRows = 8192 / kHdim, kStages = 2, kThreads = 384;
constexpr int kPanels = kHdim / 64;  // of 64 columns, rows of 128 bytes
constexpr int kTileBytes =
    kQueryRows * kHdim * 4;          // of dQ: 32 KB; a warpgroup makes a 64 x 64 block, by rows (64) or columns (128)
constexpr int kMostPolls = 1 << 22;  // of a counter before the kernel traps: a hang would take the device along
using Tiles = Order<kQueryRows, kKeys>;

struct Shared {
  uint16_t k[kKeys * kHdim], v[kKeys * kHdim];
  uint16_t q[kStages][kQueryRows * kHdim], dout[kStages][kQueryRows * kHdim];
  uint16_t ds[2][kKeys * kQueryRows];
  float dq[2][2][64 * 64];
  float lse[kStages][kQueryRows], delta[kStages][kQueryRows];
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

TILEKILN_DEVICE void load_panels(const CUtensorMap& map, const void* to, int rows, uint64_t& full, int row, int b,
                                 int h) {
#pragma unroll
  for (int i = 0; i < kPanels; ++i) tensor_load(shared_address(to) + i * rows * 128, map, full, 64 * i, row, 0, b, h);
}

TILEKILN_DEVICE void load(const Row& p, Shared& s, int lane) {
  const Tiles order(p);
  uint32_t step = 0, turns = 0;
  Turn t;
  for (int x = 0; x < order.turns(); ++x) {
    if (!order.turn(x, t)) continue;
    if (lane == 0) {
      const int b = t.head / p.nhead_k, head_k = t.head - b * p.nhead_k;
      wait(s.kv_empty, (turns & 1) ^ 1);
      arrive_expecting(s.kv_full, 2 * kKeys * kHdim * 2);
      load_panels(p.k, s.k, kKeys, s.kv_full, t.tile * kKeys, b, head_k);
      load_panels(p.v, s.v, kKeys, s.kv_full, t.tile * kKeys, b, head_k);
      int g, m;
      order.first_step(t, g, m);
      for (int c = 0; c < t.length; ++c, ++step, order.next_step(t, g, m)) {
        const int slot = step % kStages, head = head_k * order.group + g;
        const uint32_t phase = (step / kStages & 1) ^ 1, bytes = kQueryRows * (2 * kHdim + 4);
        const int64_t rows = ((int64_t(b) * p.nhead_q + head) * p.query_tiles + m) * kQueryRows;
        jitter(step);
        wait(s.q_empty[slot], phase);
        arrive_expecting(s.q_full[slot], bytes);
        load_panels(p.q, s.q[slot], kQueryRows, s.q_full[slot], m * kQueryRows, b, head);
        bulk_load(shared_address(s.lse[slot]), p.lse_log2 + rows, kQueryRows * 4, s.q_full[slot]);
        wait(s.dout_empty[slot], phase);
        arrive_expecting(s.dout_full[slot], bytes);
        load_panels(p.dout, s.dout[slot], kQueryRows, s.dout_full[slot], m * kQueryRows, b, head);
        bulk_load(shared_address(s.delta[slot]), p.delta + rows, kQueryRows * 4, s.dout_full[slot]);
      }
    }
    ++turns;
    __syncwarp();
  }
}

// Writer u owns shared buffer u, the dQ of every other step: one waits for its add to complete while the other works.
TILEKILN_DEVICE void write_dq(const Row& p, Shared& s, int u, int lane) {
  const Tiles order(p);
  uint32_t step = 0;
  Turn t;
  for (int x = 0; x < order.turns(); ++x) {
    if (!order.turn(x, t)) continue;
    int g, m;
    order.first_step(t, g, m);
    for (int c = 0; c < t.length; ++c, ++step, order.next_step(t, g, m)) {
      if (int(step & 1) != u) continue;
      const int before = order.rank(t, g, m, lane);
      if (lane == 0) {
        const int64_t round = int64_t(order.group) * p.query_tiles, at = g * p.query_tiles + m;
        float* sums = p.dq_sums + ((t.head * round + at) * p.slots + t.slot) * (kTileBytes / 4);
        unsigned* counter = p.counters + (int64_t(t.head) * p.slots + t.slot) * round + at;
        jitter(step * 3 + 1);
        if (before > 0) {  // before the data is waited for, so that a poll is off the critical path
          unsigned done;
          int polls = 0;
          do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(done) : "l"(counter) : "memory");
            if (++polls > kMostPolls) __trap();
          } while (done != unsigned(before));
          async_proxy_fence();
        }
        wait(s.dq_full[u], step >> 1 & 1);
        const uint32_t from = shared_address(s.dq[u]);
        if (before == 0) {
          bulk_store(sums, from, kTileBytes);  // the first needs no zeros
        } else {
          bulk_add(sums, from, kTileBytes);
        }
        bulk_commit();
        bulk_wait_read();
        arrive(s.dq_empty[u]);
        bulk_wait();
        async_proxy_fence();
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
      }
      __syncwarp();
    }
  }
}

// Four column groups of one row, packed and transposed, to `to` + column.
template <int N> TILEKILN_DEVICE void store_row(uint16_t* to, bool inside, int hdim, int lane, const float (&a)[N],
                                                int half, float scale) {
#pragma unroll
  for (int d = 0; d < N / 4; d += 4) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      word[i] = pack(a[(d + i) * 4 + 2 * half] * scale, a[(d + i) * 4 + 2 * half + 1] * scale);
    const uint4 line = quad_transpose(lane, word[0], word[1], word[2], word[3]);
    if (inside && d * 8 + (lane & 3) * 8 < hdim) *reinterpret_cast<uint4*>(to + d * 8 + (lane & 3) * 8) = line;
  }
}

TILEKILN_DEVICE void compute(const Row& p, Shared& s, int w, int thread) {
  const Tiles order(p);
  const int lane = thread & 31, warp = thread >> 5, c2 = (lane & 3) * 2;
  float dk[kHdim / 2], dv[kHdim / 2], score[kQueryRows / 2], dq[32];
  uint32_t weight[kQueryRows / 16][4];
  const uint32_t k = shared_address(s.k), v = shared_address(s.v);
  uint32_t step = 0, turns = 0;
  Turn t{};

  const auto issue_scores = [&](uint32_t keys, uint32_t rows) {  // score (64 keys, query rows) = keys rows^T
    product_fence();
#pragma unroll
    for (int i = 0; i < kHdim / 16; ++i)
      Product<kQueryRows, 0, 0>::shared(
          score, tile_descriptor(keys + i / 4 * kKeys * 128 + w * 64 * 128 + i % 4 * 32, 16, 1024),
          tile_descriptor(rows + i / 4 * kQueryRows * 128 + i % 4 * 32, 16, 1024), i > 0);
    product_commit();
  };
  const auto issue_dk_dq = [&](uint32_t at) {  // dk += dS^T q; dq = dS k
    const uint32_t q = shared_address(s.q[at % kStages]), ds = shared_address(s.ds[at & 1]);
    product_fence();
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i)
      Product<kHdim, 0, 1>::shared(dk, tile_descriptor(ds + i / 4 * kKeys * 128 + w * 64 * 128 + i % 4 * 32, 16, 1024),
                                   tile_descriptor(q + i * 2048, kQueryRows * 128, 1024), 1);
    product_commit();
    const uint32_t block_rows = kHdim == 64 ? w * kKeys * 128 : 0, block_columns = kHdim == 64 ? 0 : w * kKeys * 128;
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      Product<64, 1, 1>::shared(dq, tile_descriptor(ds + block_rows + i * 2048, 1024, 1024),
                                tile_descriptor(k + block_columns + i * 2048, 1024, 1024), i > 0);
    product_commit();
  };
  const auto hand_over_dq = [&](uint32_t at) {  // registers to shared memory in the order of threads: no bank conflicts
    const int u = at & 1;
    wait(s.dq_empty[u], (at >> 1 & 1) ^ 1);
    float4* to = reinterpret_cast<float4*>(s.dq[u][w]) + thread;
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i * 128] = make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    async_shared_fence();
    warp_arrive(s.dq_full[u], lane);
  };

  // One query tile. `first` is a template argument: a product in a branch makes ptxas wait for all of them.
  const auto query_tile = [&](auto first, int g, int m) {
    const int slot = step % kStages;
    const uint32_t phase = step / kStages & 1;
    wait(s.q_full[slot], phase);
    issue_scores(k, shared_address(s.q[slot]));
    if constexpr (!first.value) {
      issue_dk_dq(step - 1);
      product_wait<2>();
    } else {
      product_wait<0>();
    }
    pin(score);
    const int first_key = t.tile * kKeys + w * 64, key = first_key + warp * 16 + (lane >> 2), row = m * kQueryRows + c2;
    if (p.features & kAlibi) {  // s -= slope / scale |row + shift - key|
      const int b = t.head / p.nhead_k, h = (t.head - b * p.nhead_k) * order.group + g;
      const float slope = p.alibi_slopes[b * p.alibi_batch + h] * p.alibi_scale;
      const float distance = float(row + p.shift - key);
#pragma unroll
      for (int j = 0; j < kQueryRows / 2; ++j)
        score[j] -= slope * fabsf(distance + float((j >> 2) * 8 + (j & 1) - (j >> 1 & 1) * 8));
    }
    const float2* lse = reinterpret_cast<const float2*>(s.lse[slot] + c2);
#pragma unroll
    for (int j = 0; j < kQueryRows / 8; ++j) {
      const float2 l = lse[j * 4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        score[4 * j + i] = exp2_approx(__fmaf_rn(score[4 * j + i], p.score_scale_log2, i & 1 ? -l.y : -l.x));
    }
    const int low = m * kQueryRows + p.shift, high = low + kQueryRows - 1;  // the diagonal of this tile's rows
    if (first_key + 63 > low + p.right || first_key < high - p.left || first_key + 64 > p.seqlen_k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = key + 8 * half, centre = low + c2;
        // row column j is seen iff at - right <= centre + column <= at + left
        const int begin = at < p.seqlen_k ? at - p.right - centre : kQueryRows, end = at + p.left - centre;
#pragma unroll
        for (int j = 0; j < kQueryRows / 2; ++j)
          if ((j >> 1 & 1) == half && ((j >> 2) * 8 + (j & 1) < begin || (j >> 2) * 8 + (j & 1) > end)) score[j] = 0.f;
      }
    }
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i)
#pragma unroll
      for (int u = 0; u < 4; ++u) weight[i][u] = pack(score[8 * i + 2 * u], score[8 * i + 2 * u + 1]);
    if constexpr (!first.value) {
      product_wait<0>();
      pin(dk);
      pin(dq);
      warp_arrive(s.q_empty[slot ^ 1], lane);
    }
    wait(s.dout_full[slot], phase);
    const uint32_t dout = shared_address(s.dout[slot]);
    issue_scores(v, dout);  // dP^T
    product_fence();
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i)  // dv += P^T dout
      Product<kHdim, 0, 1>::registers(dv, weight[i], tile_descriptor(dout + i * 2048, kQueryRows * 128, 1024), 1);
    product_commit();
    if constexpr (!first.value) hand_over_dq(step - 1);
    product_wait<1>();
    pin(score);
    const float2* delta = reinterpret_cast<const float2*>(s.delta[slot] + c2);
    const int quarter = lane >> 3, to_row = w * 64 + warp * 16 + (quarter & 1) * 8 + (lane & 7);
    const uint32_t ds = shared_address(s.ds[step & 1]) + to_row * 128;
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {
      const float2 d[2] = {delta[2 * i * 4], delta[(2 * i + 1) * 4]};
      uint32_t word[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        float low_p, high_p;
        unpack(weight[i][u], low_p, high_p);
        word[u] = pack(low_p * (score[8 * i + 2 * u] - d[u / 2].x), high_p * (score[8 * i + 2 * u + 1] - d[u / 2].y));
      }
      store_matrices(ds + i / 4 * kKeys * 128 + ((i % 4 * 2 + (quarter >> 1)) ^ (to_row & 7)) * 16, word);
    }
    async_shared_fence();
    product_wait<0>();
    pin(dv);
    warp_arrive(s.dout_empty[slot], lane);
    named_sync(1, 256);  // dS of both warpgroups is there
    ++step;
  };

  for (int x = 0; x < order.turns(); ++x) {
    if (!uniform(order.turn(x, t))) continue;
    step = uniform(step), turns = uniform(turns);
#pragma unroll
    for (int i = 0; i < kHdim / 2; ++i) dk[i] = dv[i] = 0.f;
    pin(dk);
    pin(dv);
    wait(s.kv_full, turns & 1);
    ++turns;
    if (t.length > 0) {
      int g, m;
      order.first_step(t, g, m);
      g = uniform(g), m = uniform(m);
      query_tile(Constant<1>{}, g, m);
      for (int c = 1; c < t.length; ++c) {
        order.next_step(t, g, m);
        query_tile(Constant<0>{}, g, m);
      }
      issue_dk_dq(step - 1);
      product_wait<0>();
      pin(dk);
      pin(dq);
      warp_arrive(s.q_empty[(step - 1) % kStages], lane);
      warp_arrive(s.kv_empty, lane);
      hand_over_dq(step - 1);
    } else {
      warp_arrive(s.kv_empty, lane);
    }
    const int b = t.head / p.nhead_k, h = t.head - b * p.nhead_k;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = t.tile * kKeys + w * 64 + warp * 16 + (lane >> 2) + 8 * half;
      const bool inside = key < p.seqlen_k;
      store_row(p.dv + b * p.dv_batch + h * p.dv_head + key * p.dv_row, inside, p.hdim, lane, dv, half, 1.f);
      store_row(p.dk + b * p.dk_batch + h * p.dk_head + key * p.dk_row, inside, p.hdim, lane, dk, half,
                p.softmax_scale);
    }
  }
}

// delta, log2(e) lse, and counters at zero. Grid (query_tiles, batch nhead_q), a warp a row.
TILEKILN_DEVICE void prepare(const Row& p) {
  const int head = blockIdx.y, b = head / p.nhead_q, h = head - b * p.nhead_q, lane = threadIdx.x & 31, m = blockIdx.x;
  constexpr int kEach = kHdim / 32;  // columns a lane
  for (int i = threadIdx.x >> 5; i < kQueryRows; i += 8) {
    const int row = m * kQueryRows + i, column = lane * kEach;
    float sum = 0.f;
    if (row < p.seqlen_q && column < p.hdim) {
      const uint16_t* out = p.out + b * p.out_batch + h * p.out_head + row * p.out_row + column;
      const uint16_t* dout = p.dout_rows + b * p.dout_batch + h * p.dout_head + row * p.dout_row + column;
#pragma unroll
      for (int j = 0; j < kEach; j += 2) {
        float x[2], y[2];
        unpack(*reinterpret_cast<const uint32_t*>(out + j), x[0], x[1]);
        unpack(*reinterpret_cast<const uint32_t*>(dout + j), y[0], y[1]);
        sum += x[0] * y[0] + x[1] * y[1];
      }
    }
#pragma unroll
    for (int distance = 16; distance; distance >>= 1) sum += __shfl_xor_sync(~0u, sum, distance);
    if (lane == 0) {
      const int64_t at = (int64_t(head) * p.query_tiles + m) * kQueryRows + i;
      const float lse = row < p.seqlen_q ? p.lse[int64_t(head) * p.seqlen_q + row] : -kInfinity;
      p.delta[at] = sum;
      p.lse_log2[at] = lse == -kInfinity ? kInfinity : lse * kLog2E;
    }
  }
  const int group = p.nhead_q / p.nhead_k, g = h % group;
  for (int slot = threadIdx.x; slot < p.slots; slot += 256)
    p.counters[((int64_t(b) * p.nhead_k + h / group) * p.slots + slot) * group * p.query_tiles + g * p.query_tiles +
               m] = 0;
}

// dq = scale times the slots' sums, in their order; a slot that nobody added to holds nothing. Grid as prepare's.
TILEKILN_DEVICE void convert(const Row& p) {
  const int head = blockIdx.y, b = head / p.nhead_q, h = head - b * p.nhead_q, m = blockIdx.x;
  const int w = threadIdx.x >> 7, thread = threadIdx.x & 127, lane = thread & 31, group = p.nhead_q / p.nhead_k;
  const unsigned* counters = p.counters + (int64_t(b) * p.nhead_k + h / group) * p.slots * group * p.query_tiles +
                             h % group * p.query_tiles + m;
  float a[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) a[i] = 0.f;
  for (int slot = 0; slot < p.slots; ++slot) {
    if (counters[int64_t(slot) * group * p.query_tiles] == 0) continue;
    const int64_t tile = (int64_t(head) * p.query_tiles + m) * p.slots + slot;
    const float4* from = reinterpret_cast<const float4*>(p.dq_sums + (tile * 2 + w) * (kTileBytes / 8)) + thread;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 v = from[i * 128];
      a[4 * i] += v.x, a[4 * i + 1] += v.y, a[4 * i + 2] += v.z, a[4 * i + 3] += v.w;
    }
  }
  const int column = kHdim == 64 ? 0 : w * 64;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = m * kQueryRows + (kHdim == 64 ? w * 64 : 0) + (thread >> 5) * 16 + (lane >> 2) + 8 * half;
    store_row(p.dq + b * p.dq_batch + h * p.dq_head + row * p.dq_row + column, row < p.seqlen_q, p.hdim - column, lane,
              a, half, p.softmax_scale);
  }
}

}  // namespace tilekiln::cuda::fmha_bwd

using namespace tilekiln::cuda;

extern "C" __constant__ fmha_bwd::Build fmha_bwd_build = {fmha_bwd::kHdim, fmha_bwd::kQueryRows, fmha_bwd::kKeys,
                                                          fmha_bwd::kThreads, sizeof(fmha_bwd::Shared)};

extern "C" __global__ void __launch_bounds__(256) fmha_bwd_prepare(const __grid_constant__ fmha_bwd::Row p) {
  fmha_bwd::prepare(p);
}

extern "C" __global__ void __launch_bounds__(256) fmha_bwd_convert(const __grid_constant__ fmha_bwd::Row p) {
  fmha_bwd::convert(p);
}

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
    if (warp == 0) fmha_bwd::load(p, s, thread & 31);
    if (warp == 1 || warp == 2) fmha_bwd::write_dq(p, s, warp - 1, thread & 31);
  } else {
    more_registers<REGISTERS>();
    fmha_bwd::compute(p, s, warpgroup - 1, thread);
  }
}
