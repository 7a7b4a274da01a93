// SPDX-License-Identifier: MIT
// New keys and values into a KV cache in place, rotated on the way; queries rotated in place. A CTA is a token of a
// sequence.
//
// A rotation is in fp32, every product and sum rounded, and the result once: the bytes are those of the CPU. Heads may
// be divided by their root mean square before it, and rounded.
// -D: THREADS; TILEKILN_FP16 for fp16.
#include "kernels/attention/fmha_fwd_appendkv/cuda/norms.h"

namespace tilekiln::cuda::fmha_append {

// Eight entries of a table.
TILEKILN_DEVICE void entries(const Params& p, const void* table, int64_t at, float (&v)[8]) {
  if (p.rotary_fp32) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(static_cast<const float*>(table) + at + i);
      v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
    }
    return;
  }
  widen(*reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(table) + at), v);
}

// Pairs 8 i to 8 i + 7, (j, j + rotary_dim / 2), of a head's row.
TILEKILN_DEVICE void rotate_eight(const Params& p, const uint16_t* from, uint16_t* to, int i, int64_t position) {
  const int other = p.rotary_dim / 2;
  float cos[8], sin[8], x[8], y[8];
  widen(*reinterpret_cast<const uint4*>(from + 8 * i), x);
  widen(*reinterpret_cast<const uint4*>(from + other + 8 * i), y);
  entries(p, p.rotary_cos, position * p.cos_row + 8 * i, cos);
  entries(p, p.rotary_sin, position * p.sin_row + 8 * i, sin);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float turned = Gpu::product(x[j], cos[j]) - Gpu::product(y[j], sin[j]);
    y[j] = Gpu::product(y[j], cos[j]) + Gpu::product(x[j], sin[j]), x[j] = turned;
  }
  *reinterpret_cast<uint4*>(to + 8 * i) = narrow(x);
  *reinterpret_cast<uint4*>(to + other + 8 * i) = narrow(y);
}

// A token by pieces of 16 bytes: heads are rotated whole, or not at all.
TILEKILN_DEVICE void append_wide(const Params& p, int b, int token, const Keys& keys, int64_t position_q,
                                 int64_t position_k) {
  const int units = p.rotary_dim / 16, of_head = units > 0 ? units : p.hdim_q / 8, of_value = p.hdim_v / 8;
  const int64_t place = int64_t(keys.count) + token;
  const bool there = token < p.seqlen_new && place < p.room_k;
  const Page page = there ? find_page(p, keys, int(place)) : Page{0, 0};
  const int of_q = p.q != nullptr && token < p.seqlen_q_most ? p.nhead_q * units : 0;
  const int of_k = there ? p.nhead_k * of_head : 0, of_v = there ? p.nhead_k * of_value : 0;
  for (int e = threadIdx.x; e < of_q + of_k + of_v; e += THREADS) {
    if (e < of_q) {
      uint16_t* const head = p.q + b * p.q_batch + token * p.q_row + e / units * p.q_head;
      rotate_eight(p, head, head, e % units, position_q);
    } else if (e < of_q + of_k) {
      const int h = (e - of_q) / of_head, i = (e - of_q) % of_head;
      const uint16_t* const from = p.knew + b * p.knew_batch + token * p.knew_row + h * p.knew_head;
      uint16_t* const to = p.k + page.number * p.k_page + page.key * p.k_key + h * p.k_head;
      if (units > 0)
        rotate_eight(p, from, to, i, position_k);
      else
        reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    } else {
      const int h = (e - of_q - of_k) / of_value, i = (e - of_q - of_k) % of_value;
      const uint16_t* const from = p.vnew + b * p.vnew_batch + token * p.vnew_row + h * p.vnew_head;
      uint16_t* const to = p.v + page.number * p.v_page + page.key * p.v_key + h * p.v_head;
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  }
}

template <bool kNorms> TILEKILN_DEVICE void append(const Params& p) {
  const int tokens = max(p.seqlen_q_most, p.seqlen_new), b = blockIdx.x / tokens, token = blockIdx.x % tokens;
  const Keys keys = find_keys(p, b);
  if (!kNorms && !p.wide) return fmha::append<Gpu>(p, b, token, keys);
  const int64_t at = fmha::position(p, int64_t(keys.count) + token),
                at_q = p.q_advances ? at : fmha::position(p, int64_t(keys.count));
  if constexpr (kNorms)
    append_normalised(p, b, token, keys, at_q, at);
  else
    append_wide(p, b, token, keys, at_q, at);
}

}  // namespace tilekiln::cuda::fmha_append

using namespace tilekiln::cuda;

extern "C" __constant__ fmha_append::Build fmha_append_build = {THREADS,
#ifdef TILEKILN_FP16
                                                                1
#else
                                                                0
#endif
                                                                ,
                                                                kEarly};

extern "C" __global__ void __launch_bounds__(THREADS) fmha_append(const __grid_constant__ fmha_append::Params p) {
  begin_between_launches();
  fmha_append::append<false>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS) fmha_append_norms(const __grid_constant__ fmha_append::Params p) {
  begin_between_launches();
  fmha_append::append<true>(p);
}
