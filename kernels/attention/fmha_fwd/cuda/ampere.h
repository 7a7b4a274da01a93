// SPDX-License-Identifier: MIT
// Attention forward by mma.sync and cp.async, for every GPU from sm_80 on: out = softmax(softmax_scale q k^T, masked)
// v, 16 bits.
//
// A CTA is one block of queries of one head; a warp holds kBlocks blocks of 16 rows, and all warps share a tile of keys
// and one of values:
//
//     S = q k(n)^T      while v(n) comes          O += P v(n)      while k(n - 1) comes
//
// Two CTAs share a processor, so that one's softmax lies under the other's products. Masks, alibi, bias, soft cap, the
// running softmax and the order of tiles are those of the other kernels (score.h, softmax.h, tile.h, finish.h). The
// loop has a copy for plain scores and one that asks for every feature; keys in pages have a kernel of their own, which
// looks up every row of a tile.
//
// -D: HDIM_Q, HDIM_V (multiples of 64), WARPS, BLOCKS, KEYS (at most 64); TILEKILN_FP16 for fp16.
#pragma once

#include "kernels/attention/cuda/copy_rows.h"
#include "kernels/attention/fmha_fwd/cuda/ampere_params.h"
#include "kernels/attention/fmha_fwd/cuda/finish.h"

namespace tilekiln::cuda::fmha_fwd {

constexpr int kHdimQ = HDIM_Q, kHdimV = HDIM_V, kWarps = WARPS, kBlocks = BLOCKS, kKeys = KEYS;
constexpr int kWarpRows = 16 * kBlocks, kQueryRows = kWarps * kWarpRows, kThreads = 32 * kWarps;
using Order = Tiles<kQueryRows, kKeys>;

struct Shared {
  uint16_t q[kQueryRows * kHdimQ], k[kKeys * kHdimQ], v[kKeys * kHdimV];
  Tile tile;
};

// Rows of keys that lie in pages, from key `first` on.
template <int kHdim, int kRows>
TILEKILN_DEVICE void load_pages(uint32_t to, const uint16_t* data, int64_t page_step, int64_t row_step, int hdim,
                                const Rows& rows, const Params& p, const Keys& keys, int first) {
  each_piece<kHdim, kRows, kThreads, 4>([&](int row, int piece) {
    const bool inside = row < rows.end && (row >= rows.begin || row < rows.sinks) && piece * 8 < hdim;
    const Page page = inside ? find_page(p, keys, keys.first + first + row) : Page{0, 0};
    copy_async(to + place<kHdim>(row, piece), data + page.number * page_step + page.key * row_step + piece * 8, inside);
  });
}

// No functions of a program, which kernels/attention/fmha_fwd/cuda/functions.h has here.
struct NoFunctions {
  static constexpr bool kThere = false;
  TILEKILN_DEVICE NoFunctions of(const AmpereParams&, const Tile&) { return {}; }
};

// S += q k^T of a warp's rows.
TILEKILN_DEVICE void multiply_scores(float (&score)[kBlocks][kKeys / 2], uint32_t q_at, uint32_t k_at, int warp_row,
                                     int lane) {
#pragma unroll
  for (int i = 0; i < kHdimQ / 16; ++i) {
    uint32_t q[kBlocks][4];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      load_matrices(q[b], q_at + place<kHdimQ>(warp_row + 16 * b + (lane & 15), 2 * i + (lane >> 4)));
#pragma unroll
    for (int j = 0; j < kKeys / 16; ++j) {
      uint32_t k[4];
      load_matrices(k, k_at + place<kHdimQ>(16 * j + (lane & 7) + (lane >> 4 << 3), 2 * i + (lane >> 3 & 1)));
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        multiply_add(block(score[b], 2 * j), q[b], k[0], k[1]);
        multiply_add(block(score[b], 2 * j + 1), q[b], k[2], k[3]);
      }
    }
  }
}
// O += P v.
TILEKILN_DEVICE void add_values(float (&o)[kBlocks][kHdimV / 2], const uint32_t (&weight)[kBlocks][kKeys / 16][4],
                                uint32_t v_at, int lane) {
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
    for (int d = 0; d < kHdimV / 16; ++d) {
      uint32_t v[4];
      load_matrices_transposed(v, v_at + place<kHdimV>(16 * i + (lane & 15), 2 * d + (lane >> 4)));
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        multiply_add(block(o[b], 2 * d), weight[b][i], v[0], v[1]);
        multiply_add(block(o[b], 2 * d + 1), weight[b][i], v[2], v[3]);
      }
    }
  }
}

template <bool kGeneral, bool kPages, class Own>
TILEKILN_DEVICE void key_tiles(const AmpereParams& a, Shared& s, const Keys& keys, float (&o)[kBlocks][kHdimV / 2],
                               SoftmaxState (&state)[kBlocks]) {
  const Params& p = a.common;
  const Tile& tile = s.tile;
  const int lane = threadIdx.x & 31, warp_row = (threadIdx.x >> 5) * kWarpRows;
  const uint32_t q_at = shared_address(s.q), k_at = shared_address(s.k), v_at = shared_address(s.v);
  const int head_k = tile.h / (p.nhead_q / p.nhead_k), first = tile.range.first, sinks = tile.range.sinks;
  // Keys that no row sees are zeros here: what lies in a cache behind its last key means nothing.
  int low = 0, count = tile.seqlen_k;
  if (p.features & kMask) {
    low = tile.row + tile.shift - p.left;
    count = min(count, min(tile.row + kQueryRows, tile.seqlen_q) + tile.shift + p.right);
  }
  const uint16_t* const k = a.k + head_k * a.k_head + (kPages ? 0 : keys.row * a.k_page + keys.first * a.k_row);
  const uint16_t* const v = a.v + head_k * a.v_head + (kPages ? 0 : keys.row * a.v_page + keys.first * a.v_row);
  const auto rows_of = [&](int n) { return Rows{low - n * kKeys, count - n * kKeys, p.sink_keys - n * kKeys}; };
  const auto load_k = [&](int n) {
    if constexpr (kPages)
      load_pages<kHdimQ, kKeys>(k_at, k, a.k_page, a.k_row, a.hdim_q, rows_of(n), p, keys, n * kKeys);
    else
      load_rows<kHdimQ, kKeys, kThreads>(k_at, k + int64_t(n) * kKeys * a.k_row, a.k_row, a.hdim_q, rows_of(n));
    copy_async_commit();
  };
  const auto load_v = [&](int n) {
    if constexpr (kPages)
      load_pages<kHdimV, kKeys>(v_at, v, a.v_page, a.v_row, p.hdim_v, rows_of(n), p, keys, n * kKeys);
    else
      load_rows<kHdimV, kKeys, kThreads>(v_at, v + int64_t(n) * kKeys * a.v_row, a.v_row, p.hdim_v, rows_of(n));
    copy_async_commit();
  };
  KeyRange whole = {first, tile.seqlen_k / kKeys, 0};  // what every row of this warp sees whole
  if (p.features & kMask)
    whole = KeyRange::whole<kKeys>(mask_of(p, tile.shift), tile.row + warp_row, kWarpRows, tile.seqlen_k, first);
  const int unmasked = uniform(whole.first), masked_until = uniform(whole.last);
  const int final = sinks ? 0 : first;
  Own own = Own::of(a, tile);
  const auto below = [&](int n) { return n == first && sinks ? sinks - 1 : n - 1; };
  const auto shown = [&](int n) {
    if constexpr (Own::kThere)
      while (n >= final && !own.shows(n)) n = below(n);
    return n;
  };
  int n = shown(tile.range.last - 1);
  if (n >= final) load_k(n);
  while (n >= final) {
    bool part = false;
    if constexpr (Own::kThere) part = own.part(n);
    const int following = shown(below(n));
    copy_async_wait<0>();
    __syncthreads();  // k(n) is there, and all have done with the last v
    load_v(n);
    float score[kBlocks][kKeys / 2] = {};
    multiply_scores(score, q_at, k_at, warp_row, lane);
    copy_async_wait<0>();
    __syncthreads();  // v(n) is there, and all have done with k(n)
    if (following >= final) load_k(following);
    uint32_t weight[kBlocks][kKeys / 16][4];
    using Dropped = DroppedRows<kKeys / 8>;
    Dropped dropped[kBlocks];
    if constexpr (kGeneral) {
      if (p.features & kDropout) {
        const Dropout d{p.dropout_seed, p.dropout_offset, p.dropout_over};
        Dropped::draw_alone(d, tile.b * p.nhead_q + tile.h, tile.row + warp_row, n * kKeys, dropped);
      } else {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) dropped[b].none();
      }
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if constexpr (kGeneral) change(score[b], p, tile, warp_row + 16 * b, n * kKeys);
      if constexpr (Own::kThere) own.change(score[b], tile, warp_row + 16 * b, n * kKeys, part);
      if (n < unmasked || n >= masked_until) mask(score[b], p, tile, warp_row + 16 * b, n * kKeys);
      state[b].update(score[b], p.score_scale_log2);
#pragma unroll
      for (int i = 0; i < kHdimV / 2; ++i) o[b][i] *= state[b].correction[half_of(i)];
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          weight[b][i][u] = pack(score[b][8 * i + 2 * u], score[b][8 * i + 2 * u + 1]);
          if constexpr (kGeneral) weight[b][i][u] = dropped[b].apply(weight[b][i][u], 2 * i + u / 2, u % 2);
        }
      }
    }
    add_values(o, weight, v_at, lane);
    n = following;
  }
}

template <bool kPages, class Own = NoFunctions> TILEKILN_DEVICE void forward(const AmpereParams& a, Shared& s) {
  const Params& p = a.common;
  Tile decoded;
  Keys keys{0, 0, 0, 0};
  if (!Order::decode(p, blockIdx.x, decoded, keys)) return;  // alike for all threads
  if (!(p.features & kCache)) keys.row = decoded.b;
  if (threadIdx.x == 0) s.tile = decoded;
  __syncthreads();
  const uint16_t* const q =
      a.q + decoded.b * a.q_batch + decoded.h * a.q_head + (int64_t(decoded.start_q) + decoded.row) * a.q_row;
  load_rows<kHdimQ, kQueryRows, kThreads>(shared_address(s.q), q, a.q_row, a.hdim_q,
                                          {0, decoded.seqlen_q - decoded.row, 0});
  float o[kBlocks][kHdimV / 2] = {};
  SoftmaxState state[kBlocks];
  if (!Own::kThere && (kPages || p.features & (kSoftcap | kAlibi | kBias | kDropout))) {
    key_tiles<!Own::kThere, kPages, Own>(a, s, keys, o, state);
  } else {
    key_tiles<false, kPages, Own>(a, s, keys, o, state);
  }
  copy_async_wait<0>();
  const int lane = threadIdx.x & 31, warp_row = (threadIdx.x >> 5) * kWarpRows;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    state[b].reduce();
    finish(p, s.tile, warp_row + 16 * b + (lane >> 2), lane, o[b], state[b], p.score_scale_log2, 1.f);
  }
}

// A kernel whose argument begins with an AmpereParams.
#define TILEKILN_FORWARD(name, argument, ...)                                              \
  extern "C" __global__ void __launch_bounds__(tilekiln::cuda::fmha_fwd::kThreads)         \
      name(const __grid_constant__ argument p) {                                           \
    extern __shared__ __align__(128) char raw[];                                           \
    using namespace tilekiln::cuda::fmha_fwd;                                              \
    forward<__VA_ARGS__>(p, *reinterpret_cast<Shared*>(raw));                              \
  }

}  // namespace tilekiln::cuda::fmha_fwd

extern "C" __constant__ tilekiln::cuda::fmha_fwd::Build fmha_fwd_build = {
    tilekiln::cuda::fmha_fwd::kHdimQ,         tilekiln::cuda::fmha_fwd::kHdimV,
    tilekiln::cuda::fmha_fwd::kQueryRows,     0,
    tilekiln::cuda::fmha_fwd::kKeys,          tilekiln::cuda::fmha_fwd::kThreads,
    sizeof(tilekiln::cuda::fmha_fwd::Shared), std::is_same_v<tilekiln::cuda::BuildElement, tilekiln::cuda::fp16>};
