// Attention backward by mma.sync and cp.async, for every GPU from sm_80 on, bit-reproducible: dq, dk and dv, the latter summed over the
// query heads of a group. The mathematics, the teams of workers and the order of their adds are those of backward.cu.
//
// A CTA, one a multiprocessor, holds a tile of 128 keys, 16 in each of eight warps, and walks over the query tiles that see it. S^T and dP^T
// have keys for rows, so P^T and dS^T stay in registers as the first operands of dV and dK; v stays in registers too. dS^T goes
// through shared memory to be, transposed, the first operand of dQ:
//
//     S = q k^T, P          while the next q comes
//     dP = dO v^T, dV, dS   all have dS, and the turn to add dQ has come
//     dK, dQ                while the next dO comes
//
// Nobody else touches a tile's sum in its turn, so dQ's accumulators begin with it and end in its place: no atomic adds, and the sum is
// fetched under dK. Ranks of eight steps are worked out at a time, by a warp each.
//
// -D: HDIM (64 or 128); TILEKILN_FP16 for fp16.
#include "kernels/attention/cuda/copy_rows.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/ampere_row.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/passes.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/scores.h"

namespace tilekiln::cuda::fmha_bwd {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
// The thread that says that a turn has ended; thread 0 awaits the next one. Apart they cost d128 4 % less on an H100, and d64 the same.
constexpr int kCloser = kHdim == 64 ? 0 : kThreads - 32;
static_assert(kKeys == 16 * kWarps && kBlocks == 2, "a warp has 16 keys and a quarter of a block of dq");

struct Shared {
  uint16_t k[kKeys * kHdim];
  uint16_t q[2][kQueryRows * kHdim];  // v passes through them on its way to registers
  uint16_t dout[kQueryRows * kHdim];
  uint16_t ds[kKeys * kQueryRows];
  alignas(16) float lse[kQueryRows], delta[kQueryRows];
  int before[kWarps];  // adds that go before that of a step, of eight steps
};
static_assert(sizeof(Shared) <= 101376, "a block of sm_86 and sm_89 has 99 KB of shared memory");
static_assert(sizeof(Shared::q) >= sizeof(uint16_t) * kKeys * kHdim, "v passes through q");

using Walk = Order<kQueryRows, kKeys, true>;

// The addresses of a turn's rows.
struct Sequence {
  const uint16_t* q;  // of the first query head of the group
  const uint16_t* dout;
  int64_t first_tile;  // its number, of the first query head
};

TILEKILN_DEVICE void load_queries(const AmpereRow& a, const Turn& t, const Sequence& of, uint32_t to, int g, int m) {
  load_rows<kHdim, kQueryRows, kThreads>(to, of.q + g * a.q_head + int64_t(m) * kQueryRows * a.q_row, a.q_row,
                                         a.row.hdim_q, {0, t.of.seqlen_q - m * kQueryRows, 0});
  copy_async_commit();
}

TILEKILN_DEVICE void load_gradients(const AmpereRow& a, Shared& s, const Walk& order, const Turn& t, const Sequence& of,
                                    int g, int m) {
  const Row& p = a.row;
  load_rows<kHdim, kQueryRows, kThreads>(shared_address(s.dout),
                                         of.dout + g * p.dout_head + int64_t(m) * kQueryRows * p.dout_row, p.dout_row,
                                         p.hdim_v, {0, t.of.seqlen_q - m * kQueryRows, 0});
  constexpr int kPieces = kQueryRows / 4;  // of 16 bytes
  const int64_t rows = (of.first_tile + g * order.head_tiles() + m) * kQueryRows;
  if (threadIdx.x < 2 * kPieces) {
    const int piece = threadIdx.x % kPieces * 4;
    const bool first = threadIdx.x < kPieces;
    copy_async(shared_address(first ? s.lse : s.delta) + piece * 4, (first ? p.lse_log2 : p.delta) + rows + piece,
               true);
  }
  copy_async_commit();
}

template <int kExtras>
TILEKILN_DEVICE void walk(const AmpereRow& a, Shared& s, const Walk& order, const Turn& t, const Sequence& of,
                          float (&dk)[kHdim / 2], float (&dv)[kHdim / 2], const uint32_t (&v)[kHdim / 16][4]) {
  const Row& p = a.row;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, own_key = warp * 16;
  const uint32_t k_at = shared_address(s.k), dout_at = shared_address(s.dout), ds_at = shared_address(s.ds);
  // Of dq: 16 rows and 64 columns of a block of 64 x 64.
  const int block_of = warp >> 2, dq_rows = kHdim == 64 ? warp : warp & 3, dq_piece = kHdim == 64 ? 0 : block_of * 8;
  int g, m;
  order.first_step(t, g, m);
  load_queries(a, t, of, shared_address(s.q[0]), g, m);
  load_gradients(a, s, order, t, of, g, m);
  unsigned* added = nullptr;  // the counter of the step before
#pragma unroll 1
  for (int c = 0; c < t.length; ++c) {
    if (c % kWarps == 0) {
      int g_then = g, m_then = m;
      for (int i = 0; i < warp; ++i) order.next_step(t, g_then, m_then);
      const int rank = c + warp < t.length ? order.rank(t, g_then, m_then, lane) : 0;
      if (lane == 0) s.before[warp] = rank;
    }
    const int64_t sum = (of.first_tile + g * order.head_tiles() + m) * p.slots + t.slot;
    int g_next = g, m_next = m;
    order.next_step(t, g_next, m_next);
    const uint32_t q_at = shared_address(s.q[c & 1]);
    copy_async_wait<0>();
    __syncthreads();  // q(m) and dout(m) are there, and all have stored the dq before
    if (c + 1 < t.length) load_queries(a, t, of, shared_address(s.q[1 - (c & 1)]), g_next, m_next);

    float score[kQueryRows / 2] = {};
#pragma unroll
    for (int i = 0; i < kHdim / 16; ++i) {
      uint32_t keys[4];
      load_matrices(keys, k_at + place<kHdim>(own_key + (lane & 15), 2 * i + (lane >> 4)));
#pragma unroll
      for (int j = 0; j < kQueryRows / 16; ++j) {
        uint32_t rows[4];
        load_matrices(rows, q_at + place<kHdim>(16 * j + (lane & 7) + (lane >> 4 << 3), 2 * i + (lane >> 3 & 1)));
        multiply_add(block(score, 2 * j), keys, rows[0], rows[1]);
        multiply_add(block(score, 2 * j + 1), keys, rows[2], rows[3]);
      }
    }
    if (threadIdx.x == kCloser && added) end_turn(added);
    uint32_t weight[kQueryRows / 16][4];
    Scores<kExtras, kQueryRows, 16> scores(p, t, order.group, g, m, t.tile * kKeys + own_key, 0, lane, weight);
    scores.draw();
    scores.weigh(score, s.lse, [] {});

#pragma unroll
    for (int i = 0; i < kQueryRows / 2; ++i) score[i] = 0.f;
#pragma unroll
    for (int i = 0; i < kHdim / 16; ++i) {  // dP^T
#pragma unroll
      for (int j = 0; j < kQueryRows / 16; ++j) {
        uint32_t rows[4];
        load_matrices(rows, dout_at + place<kHdim>(16 * j + (lane & 7) + (lane >> 4 << 3), 2 * i + (lane >> 3 & 1)));
        multiply_add(block(score, 2 * j), v[i], rows[0], rows[1]);
        multiply_add(block(score, 2 * j + 1), v[i], rows[2], rows[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {  // dv += P^T dout
#pragma unroll
      for (int d = 0; d < kHdim / 16; ++d) {
        uint32_t rows[4];
        load_matrices_transposed(rows, dout_at + place<kHdim>(16 * i + (lane & 15), 2 * d + (lane >> 4)));
        multiply_add(block(dv, 2 * d), weight[i], rows[0], rows[1]);
        multiply_add(block(dv, 2 * d + 1), weight[i], rows[2], rows[3]);
      }
    }
    uint16_t* const dbias = scores.dbias();
    uint32_t ds[kQueryRows / 16][4];
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {
      const float2 delta[2] = {scores.delta_of(s.delta, 2 * i), scores.delta_of(s.delta, 2 * i + 1)};
      scores.differentiate(i, score, delta, dbias, ds[i]);
#pragma unroll
      for (int u = 0; u < 4; ++u)
        *reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(s.ds) +
                                     place<kQueryRows>(own_key + (lane >> 2) + 8 * (u & 1), 2 * i + (u >> 1)) +
                                     (lane & 3) * 4) = ds[i][u];
    }
    unsigned* const counter = p.counters + sum;
    const int ahead = s.before[c % kWarps];
    if (threadIdx.x == 0 && ahead > 0) await_turn(counter, ahead);
    __syncthreads();  // all of dS is there, the turn has come, and all have done with dout
    if (c + 1 < t.length) load_gradients(a, s, order, t, of, g_next, m_next);
    float4* const sums =
        reinterpret_cast<float4*>(p.dq_sums + sum * (kTileBytes / 4) + block_of * 64 * 64) + (threadIdx.x & 127);
    float dq[32] = {};
    if (ahead > 0) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 part = sums[i * 128];
        dq[4 * i] = part.x, dq[4 * i + 1] = part.y, dq[4 * i + 2] = part.z, dq[4 * i + 3] = part.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {  // dk += dS^T q
#pragma unroll
      for (int d = 0; d < kHdim / 16; ++d) {
        uint32_t rows[4];
        load_matrices_transposed(rows, q_at + place<kHdim>(16 * i + (lane & 15), 2 * d + (lane >> 4)));
        multiply_add(block(dk, 2 * d), ds[i], rows[0], rows[1]);
        multiply_add(block(dk, 2 * d + 1), ds[i], rows[2], rows[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {  // dq += dS k
      uint32_t rows[4];
      load_matrices_transposed(
          rows, ds_at + place<kQueryRows>(16 * i + (lane & 7) + (lane >> 4 << 3), 2 * dq_rows + (lane >> 3 & 1)));
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        uint32_t keys[4];
        load_matrices_transposed(keys, k_at + place<kHdim>(16 * i + (lane & 15), dq_piece + 2 * d + (lane >> 4)));
        multiply_add(block(dq, 2 * d), rows, keys[0], keys[1]);
        multiply_add(block(dq, 2 * d + 1), rows, keys[2], keys[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i * 128] = make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    added = counter;
    g = g_next, m = m_next;
  }
  __syncthreads();
  if (threadIdx.x == 0) end_turn(added);
}

TILEKILN_DEVICE void backward(const AmpereRow& a, Shared& s) {
  const Row& p = a.row;
  const Walk order(p);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  Turn t{};
  for (int x = 0; x < order.turns(); ++x) {
    if (!order.turn(x, t)) continue;
    const int b = t.head / p.nhead_k, h = t.head - b * p.nhead_k, first_key = t.tile * kKeys, start = start_k(p, b);
    float dk[kHdim / 2] = {}, dv[kHdim / 2] = {};
    if (t.length > 0) {
      const Rows rows{0, t.of.seqlen_k - first_key, 0};
      load_rows<kHdim, kKeys, kThreads>(shared_address(s.k),
                                        a.k + b * a.k_batch + h * a.k_head + (int64_t(start) + first_key) * a.k_row,
                                        a.k_row, p.hdim_q, rows);
      load_rows<kHdim, kKeys, kThreads>(shared_address(s.q),
                                        a.v + b * a.v_batch + h * a.v_head + (int64_t(start) + first_key) * a.v_row,
                                        a.v_row, p.hdim_v, rows);
      copy_async_commit();
      copy_async_wait<0>();
      __syncthreads();
      uint32_t v[kHdim / 16][4];
#pragma unroll
      for (int i = 0; i < kHdim / 16; ++i)
        load_matrices(v[i], shared_address(s.q) + place<kHdim>(warp * 16 + (lane & 15), 2 * i + (lane >> 4)));
      __syncthreads();
      const int64_t head = int64_t(h) * order.group, row = start_q(p, b);
      const Sequence of = {a.q + b * a.q_batch + head * a.q_head + row * a.q_row,
                           p.dout_rows + b * p.dout_batch + head * p.dout_head + row * p.dout_row,
                           tile_of<kQueryRows>(p, b, h * order.group, 0)};
      switch (p.features & (kSoftcap | kAlibi | kBias | kDropout)) {
        case 0:
        case kAlibi: walk<kPlain>(a, s, order, t, of, dk, dv, v); break;
        case kDropout: walk<kDropped>(a, s, order, t, of, dk, dv, v); break;
        default: walk<kGeneral>(a, s, order, t, of, dk, dv, v);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = first_key + warp * 16 + (lane >> 2) + 8 * half;
      const bool inside = key < t.of.seqlen_k;
      store_row(p.dv + b * p.dv_batch + h * p.dv_head + (int64_t(start) + key) * p.dv_row, inside, p.hdim_v, lane, dv,
                half, p.keep_scale);
      store_row(p.dk + b * p.dk_batch + h * p.dk_head + (int64_t(start) + key) * p.dk_row, inside, p.hdim_q, lane, dk,
                half, p.softmax_scale);
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
    fmha_bwd_ampere(const __grid_constant__ fmha_bwd::AmpereRow p) {
  extern __shared__ __align__(128) char raw[];
  fmha_bwd::backward(p, *reinterpret_cast<fmha_bwd::Shared*>(raw));
}
