// SPDX-License-Identifier: MIT
// Heads of a token one by one: rotated, and normalised before it by a warp each.
#pragma once

#include "kernels/attention/cuda/places.h"
#include "kernels/attention/fmha_fwd_appendkv/append.h"
#include "kernels/attention/fmha_fwd_appendkv/cuda/params.h"
#include "kernels/backends/cuda/vectors.h"

namespace tilekiln::cuda::fmha_append {

struct Gpu {
  using Element = uint16_t;
  static constexpr int kThreads = THREADS;

  TILEKILN_DEVICE int thread() { return threadIdx.x; }
  template <class E> TILEKILN_DEVICE E* array(E* data) { return data; }
  template <class E> TILEKILN_DEVICE E* array(const void* data) { return static_cast<E*>(data); }
  template <class E> TILEKILN_DEVICE float number(E x) { return value_of(x); }
  TILEKILN_DEVICE Element stored(float x) { return narrowed(x); }
  TILEKILN_DEVICE float product(float a, float b) { return __fmul_rn(a, b); }
};

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
    for (int i = lane; i < p.rotary_dim / 2; i += 32) fmha::rotate<Gpu>(p, own, to, i, is_q ? position_q : position_k);
    for (int j = p.rotary_dim + lane; j < p.hdim_q; j += 32) to[j] = Gpu::stored(own[j]);
    __syncwarp();
  }
  if (there) fmha::copy_values<Gpu>(p, b, token, page);
}

}  // namespace tilekiln::cuda::fmha_append
