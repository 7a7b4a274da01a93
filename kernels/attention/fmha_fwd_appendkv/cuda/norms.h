// SPDX-License-Identifier: MIT
// Heads of a token one by one: rotated, and normalised before it by a warp each.
#pragma once

#include "kernels/attention/cuda/places.h"
#include "kernels/attention/fmha_fwd_appendkv/cuda/params.h"

namespace tilekiln::cuda::fmha_append {

TILEKILN_DEVICE uint16_t narrow(float x) { return uint16_t(pack(x, 0.f)); }
TILEKILN_DEVICE float rounded(float x) {
  float low, high;
  unpack(pack(x, 0.f), low, high);
  return low;
}

TILEKILN_DEVICE float entry(const Params& p, const void* table, int64_t at) {
  return p.rotary_fp32 ? static_cast<const float*>(table)[at] : element(static_cast<const uint16_t*>(table)[at]);
}

TILEKILN_DEVICE float element(float x) { return x; }
using cuda::element;

// Pair i of a head's row.
template <class From>
TILEKILN_DEVICE void rotate(const Params& p, const From* from, uint16_t* to, int i, int64_t position) {
  const int first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + p.rotary_dim / 2;
  const float cos = entry(p, p.rotary_cos, position * p.cos_row + i),
              sin = entry(p, p.rotary_sin, position * p.sin_row + i);
  const float x0 = element(from[first]), x1 = element(from[second]);
  to[first] = narrow(__fsub_rn(__fmul_rn(x0, cos), __fmul_rn(x1, sin)));
  to[second] = narrow(__fadd_rn(__fmul_rn(x1, cos), __fmul_rn(x0, sin)));
}

// Values of a token as they are.
TILEKILN_DEVICE void copy_values(const Params& p, int b, int token, const Page& page) {
  const uint16_t* const from = p.vnew + b * p.vnew_batch + token * p.vnew_row;
  uint16_t* const to = p.v + page.number * p.v_page + page.key * p.v_key;
  for (int e = threadIdx.x; e < p.nhead_k * p.hdim_v; e += THREADS) {
    const int h = e / p.hdim_v, i = e % p.hdim_v;
    to[h * p.v_head + i] = from[h * p.vnew_head + i];
  }
}

// A head over its root mean square, times gamma, in shared memory of its warp.
TILEKILN_DEVICE void normalise(const Params& p, const uint16_t* from, float* to, const void* gamma) {
  const int lane = threadIdx.x & 31;
  float squares = 0;
  for (int j = lane; j < p.hdim_q; j += 32) squares = fmaf(element(from[j]), element(from[j]), squares);
#pragma unroll
  for (int i = 16; i > 0; i /= 2) squares += __shfl_xor_sync(~0u, squares, i);
  const float inverse = 1 / sqrtf(squares / float(p.hdim_q) + p.norm_epsilon);
  for (int j = lane; j < p.hdim_q; j += 32) {
    const float factor =
        p.gamma_fp32 ? static_cast<const float*>(gamma)[j] : element(static_cast<const uint16_t*>(gamma)[j]);
    const float scaled = element(from[j]) * inverse;
    to[j] = rounded((p.norm_rounds ? rounded(scaled) : scaled) * factor);
  }
  __syncwarp();
}

// A token whose heads are normalised, each by a warp.
TILEKILN_DEVICE void append_normalised(const Params& p, int b, int token, const Keys& keys, int64_t position_q,
                                       int64_t position_k) {
  __shared__ float heads[THREADS / 32][kMostHdim];
  const int lane = threadIdx.x & 31;
  const int64_t place = int64_t(keys.count) + token;
  const bool there = token < p.seqlen_new && place < p.room_k;
  const Page page = there ? find_page(p, keys, int(place)) : Page{0, 0};
  const int of_q = p.q != nullptr && token < p.seqlen_q_most ? p.nhead_q : 0, of_k = there ? p.nhead_k : 0;
  float* const own = heads[threadIdx.x / 32];
  for (int head = threadIdx.x / 32; head < of_q + of_k; head += THREADS / 32) {
    const bool is_q = head < of_q;
    const int h = is_q ? head : head - of_q;
    uint16_t* const q = p.q + b * p.q_batch + token * p.q_row + h * p.q_head;
    const uint16_t* const knew = p.knew + b * p.knew_batch + token * p.knew_row + h * p.knew_head;
    uint16_t* const to = is_q ? q : p.k + page.number * p.k_page + page.key * p.k_key + h * p.k_head;
    normalise(p, is_q ? q : knew, own, is_q ? p.q_gamma : p.k_gamma);
    for (int i = lane; i < p.rotary_dim / 2; i += 32) rotate(p, own, to, i, is_q ? position_q : position_k);
    for (int j = p.rotary_dim + lane; j < p.hdim_q; j += 32) to[j] = narrow(own[j]);
    __syncwarp();
  }
  if (there) copy_values(p, b, token, page);
}

}  // namespace tilekiln::cuda::fmha_append
