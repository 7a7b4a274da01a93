// SPDX-License-Identifier: MIT
// New keys and values into the cache, new keys and queries rotated by their position (Su et al., "RoFormer", 2021). Copies are
// byte for byte; a rotation is done in fp32, every product and sum rounded, then rounded once to the element type. Before it, if asked,
// heads of q and of the new keys are divided by their root mean square.
#pragma once

#include "kernels/attention/cpu/paging.h"
#include "kernels/backends/cpu/moments.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using fmha::AppendProblem;
using fmha::AppendUnit;
using fmha::Rope;

template <class T> TILEKILN_INLINE void widen_row(float* to, const void* from, int n) {
  for (int i = 0; i < n; i += kLanes) store(to + i, widen_some((const T*)from + i, n - i));
}

struct Angles {
  alignas(64) float cos[kMaxHdim / 2], sin[kMaxHdim / 2];

  template <class T> void read(const AppendProblem& a, i64 position) {
    const int n = a.rotary_dim / 2;
    if (a.rotary_fp32) {
      widen_row<float>(cos, (const float*)a.rotary_cos + position * a.rotary_cos_row, n);
      widen_row<float>(sin, (const float*)a.rotary_sin + position * a.rotary_sin_row, n);
    } else {
      widen_row<T>(cos, (const T*)a.rotary_cos + position * a.rotary_cos_row, n);
      widen_row<T>(sin, (const T*)a.rotary_sin + position * a.rotary_sin_row, n);
    }
  }
};

// The first rotary_dim elements; from == to is allowed. Compilers fuse a product with the sum that follows it, g++ through every
// cast and barrier tried but this one: the products are memory that the empty asm might have changed.
template <class T> void rotate(void* to, const void* from, const Angles& angles, const AppendProblem& a) {
  alignas(64) float x[kMaxHdim], y[kMaxHdim], products[4][kMaxHdim / 2];
  widen_row<T>(x, from, a.rotary_dim);
  const int half = a.rotary_dim / 2, step = a.rope == Rope::interleaved ? 2 : 1, other = step == 2 ? 1 : half;
  for (int i = 0; i < half; ++i) {
    const float x0 = x[i * step], x1 = x[i * step + other];
    products[0][i] = x0 * angles.cos[i];
    products[1][i] = x1 * angles.sin[i];
    products[2][i] = x1 * angles.cos[i];
    products[3][i] = x0 * angles.sin[i];
  }
  __asm__ volatile("" : : "r"(products) : "memory");
  for (int i = 0; i < half; ++i) {
    y[i * step] = products[0][i] - products[1][i];
    y[i * step + other] = products[2][i] + products[3][i];
  }
  for (int i = 0; i < a.rotary_dim; i += kLanes) narrow_some((T*)to + i, load(y + i), a.rotary_dim - i);
}

// A head divided by its root mean square, times gamma, rounded as rmsnorm2d rounds; from == to is allowed.
template <class T> void normalise_head(T* to, const T* from, const void* gamma, const AppendProblem& a) {
  const float squares = squares_of(Plain<T>{from}, a.hdim_q);
  const vf inverse = broadcast(1 / __builtin_sqrtf(squares / float(a.hdim_q) + a.norm_epsilon));
  twos(a.hdim_q, [&](int j, int, int left) __attribute__((always_inline)) {
    const Two scaled = mul(widen_two<T>(from + j, left), inverse);
    const Two factor =
        a.gamma_fp32 ? widen_two<T>((const float*)gamma + j, left) : widen_two<T>((const T*)gamma + j, left);
    narrow_two<T>(to + j, mul(a.norm_rounds ? rounded<T>(scaled) : scaled, factor), left);
  });
}

template <class T> void append(const AppendProblem& a, const AppendUnit& u) {
  constexpr i64 kBytes = sizeof(T);
  constexpr bool kRope = sizeof(T) > 1;  // fp8 has none
  Angles angles;
  if constexpr (kRope) {
    for (i64 row = u.q_row; a.q && a.rope != Rope::none && row < u.q_row_end; ++row) {
      if (row == u.q_row || a.q_advances) angles.read<T>(a, a.q_advances ? u.seqlen_k + row : u.seqlen_k);
      for (int h = 0; h < a.nhead_q; ++h) {
        T* q = (T*)a.q + u.q_offset + h * a.q_head + row * a.q_row;
        if (a.q_gamma) normalise_head(q, q, a.q_gamma, a);
        rotate<T>(q, q, angles, a);
      }
    }
  }
  const int* table = table_of(a.pages, u.pages_offset);
  for (i64 row = u.new_row; row < u.new_row_end; ++row) {
    int rotated = 0;
    if constexpr (kRope) {
      if (a.rope != Rope::none) {
        angles.read<T>(a, u.seqlen_k + row);
        rotated = a.rotary_dim;
      }
    }
    for (int h = 0; h < a.nhead_k; ++h) {
      const unsigned page = unsigned(a.pages.page_size);
      const CacheRows k_rows{(const char*)((const T*)a.k + u.k_offset + h * a.k_head),
                             table,
                             page,
                             u.first_key,
                             kBytes * a.pages.k_page,
                             kBytes * a.k_row};
      const CacheRows v_rows{(const char*)((const T*)a.v + u.v_offset + h * a.v_head),
                             table,
                             page,
                             u.first_key,
                             kBytes * a.pages.v_page,
                             kBytes * a.v_row};
      T* k = (T*)k_rows.at(u.seqlen_k + row);
      T* v = (T*)v_rows.at(u.seqlen_k + row);
      const T* knew = (const T*)a.knew + u.knew_offset + h * a.knew_head + row * a.knew_row;
      const T* vnew = (const T*)a.vnew + u.vnew_offset + h * a.vnew_head + row * a.vnew_row;
      alignas(64) T normalised[kRope ? kMaxHdim : 1];
      if constexpr (kRope) {
        if (a.k_gamma) normalise_head(normalised, knew, a.k_gamma, a), knew = normalised;
        if (rotated) rotate<T>(k, knew, angles, a);
      }
      __builtin_memcpy(k + rotated, knew + rotated, (a.hdim_q - rotated) * kBytes);
      __builtin_memcpy(v, vnew, a.hdim_v * kBytes);
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
