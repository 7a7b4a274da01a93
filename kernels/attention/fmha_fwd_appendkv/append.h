// SPDX-License-Identifier: MIT
// A token of an append to a KV cache, an element at a time, on NVIDIA's and AMD's GPUs.
//
// `Gpu` has what differs between them: kThreads and thread(); array(pointer), a pointer to its Element; number(element)
// and stored(number), which rounds; product(a, b), rounded by itself.
#pragma once

#include "kernels/attention/places.h"

namespace tilekiln::fmha {

// The row of the rotary tables for a key at `at`.
template <class P> TILEKILN_DEVICE long long position(const P& p, long long at) {
  return at < 0 ? 0 : at < p.positions ? at : p.positions - 1;
}

template <class Gpu, class P> TILEKILN_DEVICE float entry(const P& p, const void* table, long long at) {
  return p.rotary_fp32 ? Gpu::template array<const float>(table)[at]
                       : Gpu::number(Gpu::template array<const typename Gpu::Element>(table)[at]);
}

// Pair i of a head's row.
template <class Gpu, class P, class From, class To>
TILEKILN_DEVICE void rotate(const P& p, From from, To to, int i, long long position) {
  const int first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + p.rotary_dim / 2;
  const float cos = entry<Gpu>(p, p.rotary_cos, position * p.cos_row + i),
              sin = entry<Gpu>(p, p.rotary_sin, position * p.sin_row + i);
  const float x0 = Gpu::number(from[first]), x1 = Gpu::number(from[second]);
  to[first] = Gpu::stored(Gpu::product(x0, cos) - Gpu::product(x1, sin));
  to[second] = Gpu::stored(Gpu::product(x1, cos) + Gpu::product(x0, sin));
}

// Values of a token as they are.
template <class Gpu, class P> TILEKILN_DEVICE void copy_values(const P& p, int b, int token, const Page& page) {
  const auto from = Gpu::array(p.vnew) + b * p.vnew_batch + token * p.vnew_row;
  const auto to = Gpu::array(p.v) + page.number * p.v_page + page.key * p.v_key;
  for (int e = Gpu::thread(); e < p.nhead_k * p.hdim_v; e += Gpu::kThreads) {
    const int h = e / p.hdim_v, i = e % p.hdim_v;
    to[h * p.v_head + i] = from[h * p.vnew_head + i];
  }
}

template <class Gpu, class P> TILEKILN_DEVICE void append(const P& p, int b, int token, const Keys& keys) {
  const int pairs = p.rotary_dim / 2;
  if (p.q && token < p.seqlen_q_most) {
    const auto row = Gpu::array(p.q) + b * p.q_batch + token * p.q_row;
    const long long at = position(p, (long long)keys.count + (p.q_advances ? token : 0));
    for (int e = Gpu::thread(); e < p.nhead_q * pairs; e += Gpu::kThreads) {
      const auto head = row + e / pairs * p.q_head;
      rotate<Gpu>(p, head, head, e % pairs, at);
    }
  }
  const long long place = (long long)keys.count + token;
  if (token >= p.seqlen_new || place >= p.room_k) return;
  const Page page = find_page(p, keys, int(place));
  const auto from = Gpu::array(p.knew) + b * p.knew_batch + token * p.knew_row;
  const auto to = Gpu::array(p.k) + page.number * p.k_page + page.key * p.k_key;
  const int items = p.hdim_q - pairs;  // of a head: pairs, then elements that are copied
  const long long at = position(p, place);
  for (int e = Gpu::thread(); e < p.nhead_k * items; e += Gpu::kThreads) {
    const int h = e / items, i = e % items, copied = i + pairs;
    if (i < pairs)
      rotate<Gpu>(p, from + h * p.knew_head, to + h * p.k_head, i, at);
    else
      to[h * p.k_head + copied] = from[h * p.knew_head + copied];
  }
  copy_values<Gpu>(p, b, token, page);
}

}  // namespace tilekiln::fmha
