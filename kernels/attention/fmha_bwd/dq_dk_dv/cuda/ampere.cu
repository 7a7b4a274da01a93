// SPDX-License-Identifier: MIT
// Attention backward by mma.sync and cp.async, for every GPU from sm_80 on, bit-reproducible: dq, dk and dv, the latter
// summed over the query heads of a group. The mathematics, the teams of workers and the order of their adds are those
// of backward.cu.
//
// A CTA, one a multiprocessor, holds a tile of keys, and walks over the query tiles that see it (ampere_walk.h). Nobody
// else touches a tile's sum of dQ in its turn, so the accumulators begin with it and end in its place: no atomic adds,
// and the sum is fetched under dK. Ranks of eight steps are worked out at a time, by a warp each.
//
// -D: HDIM (64, 128 or 256), QUERY_ROWS; TILEKILN_FP16 for fp16.
#include <type_traits>

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/ampere_walk.h"

namespace tilekiln::cuda::fmha_bwd {

template <bool kByFunctions = kOwn> TILEKILN_DEVICE void backward(const AmpereParams& a, Shared& s) {
  const Params& p = a.common;
  const Walk order(p);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int own_key = key_of(warp), column = part_of(warp) * kColumns;
  Turn t{};
  for (int x = 0; x < order.turns(); ++x) {
    if (!order.turn(x, t)) continue;
    const int b = t.share / p.shares, share = t.share - b * p.shares, first_key = t.tile * kKeys;
    float dk[kSums] = {}, dv[kSums] = {};
    if (t.length > 0) {
      const int64_t h = key_head(p, share), start = start_k(p, b);
      const Rows rows{0, t.of.seqlen_k - first_key, 0};
      load_rows<kHdim, kKeys, kThreads>(shared_address(s.k),
                                        a.k + b * a.k_batch + h * a.k_head + (start + first_key) * a.k_row, a.k_row,
                                        p.hdim_q, rows);
      load_rows<kHdim, kKeys, kThreads>(shared_address(s.q),
                                        a.v + b * a.v_batch + h * a.v_head + (start + first_key) * a.v_row, a.v_row,
                                        p.hdim_v, rows);
      copy_async_commit();
      copy_async_wait<0>();
      __syncthreads();
      uint32_t v[kColumns / 16][4];
#pragma unroll
      for (int i = 0; i < kColumns / 16; ++i)
        load_matrices(v[i],
                      shared_address(s.q) + place<kHdim>(own_key + (lane & 15), column / 8 + 2 * i + (lane >> 4)));
      __syncthreads();
      const int64_t head = int64_t(share) * order.group, row = start_q(p, b);
      const Sequence of = {a.q + b * a.q_batch + head * a.q_head + row * a.q_row,
                           p.dout_rows + b * p.dout_batch + head * p.dout_head + row * p.dout_row,
                           tile_of<kQueryRows>(p, b, share * order.group, 0)};
      if constexpr (kByFunctions) {
        walk<kFunctions>(a, s, order, t, of, dk, dv, v);
      } else {
        switch (p.features & (kSoftcap | kAlibi | kBias | kDropout)) {
          case 0:
          case kAlibi: walk<kPlain>(a, s, order, t, of, dk, dv, v); break;
          case kDropout: walk<kDropped>(a, s, order, t, of, dk, dv, v); break;
          default: walk<kGeneral>(a, s, order, t, of, dk, dv, v);
        }
      }
    }
    store_keys(p, t, dv_of(p), own_key, column, lane, dv);
    store_keys(p, t, dk_of(p), own_key, column, lane, dk);
  }
}

}  // namespace tilekiln::cuda::fmha_bwd

using namespace tilekiln::cuda;

extern "C" __constant__ fmha_bwd::Build fmha_bwd_build = {
    fmha_bwd::kHdim,    fmha_bwd::kHdimV,         fmha_bwd::kQueryRows,           fmha_bwd::kKeys,
    fmha_bwd::kThreads, sizeof(fmha_bwd::Shared), std::is_same_v<BuildHalf, fp16>};

extern "C" __global__ void __launch_bounds__(fmha_bwd::kThreads, 1)
    fmha_bwd_ampere(const __grid_constant__ fmha_bwd::Argument<fmha_bwd::AmpereParams> p) {
  extern __shared__ __align__(128) char raw[];
  fmha_bwd::backward(p, *reinterpret_cast<fmha_bwd::Shared*>(raw));
}
