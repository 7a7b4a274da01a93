// SPDX-License-Identifier: MIT
// New keys and values into a KV cache in place, rotated on the way; queries rotated in place. A workgroup is a token of
// a sequence.
//
// A rotation is in fp32, every product and sum rounded, and the result once: the bytes are those of the CPU.
// Emulated (functional), never run on AMD silicon. -D: TILEKILN_FP16, FP8 (bytes, without rotation), THREADS.
#include "kernels/attention/fmha_fwd_appendkv/hip/problem.h"
#include "kernels/attention/hip/places.h"

namespace tilekiln::hip {

constexpr int kThreads = THREADS;
using Element = Choose<kFp8, unsigned char, T>;

TILEKILN_DEVICE float entry(const AppendProblem& p, const void* table, i64 at) {
  return p.rotary_fp32 ? ((Global<const float>)table)[at] : float(((Global<const Element>)table)[at]);
}

/// a b, rounded: a compiler that is told to be fast makes one operation of a product and the sum it goes into, whatever
/// a pragma says.
TILEKILN_DEVICE float product(float a, float b) {
  float made = a * b;
  asm("" : "+v"(made));
  return made;
}

/// Pair i of a head's row; bytes are not rotated.
TILEKILN_DEVICE void rotate(const AppendProblem& p, Global<const Element> from, Global<Element> to, int i,
                            i64 position) {
  const int first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + p.rotary_dim / 2;
  const float cos = entry(p, p.rotary_cos, position * p.cos_row + i);
  const float sin = entry(p, p.rotary_sin, position * p.sin_row + i);
  const float x0 = float(from[first]), x1 = float(from[second]);
  to[first] = Element(product(x0, cos) - product(x1, sin));
  to[second] = Element(product(x1, cos) + product(x0, sin));
}

TILEKILN_DEVICE void append(const AppendProblem& p) {
  const int b = __builtin_amdgcn_workgroup_id_y(), token = __builtin_amdgcn_workgroup_id_x();
  const int thread = __builtin_amdgcn_workitem_id_x(), pairs = p.rotary_dim / 2;
  const fmha::Keys keys = fmha::find_keys(p.at, b);
  const auto position = [&](i64 at) TILEKILN_LAMBDA { return at < 0 ? 0 : at < p.positions ? at : p.positions - 1; };
  if (p.q && token < p.at.seqlen_q_most) {
    const Global<Element> row = (Global<Element>)p.q + b * p.q_batch + token * p.q_row;
    const i64 at = position(i64(keys.count) + (p.q_advances ? token : 0));
    for (int e = thread; e < p.nhead_q * pairs; e += kThreads) {
      const Global<Element> head = row + e / pairs * p.q_head;
      rotate(p, head, head, e % pairs, at);
    }
  }
  const i64 place = i64(keys.count) + token;
  if (token >= p.seqlen_new || place >= p.at.room_k) return;
  const fmha::Page page = fmha::find_page(p.at, keys, int(place));
  Global<const Element> from = (Global<const Element>)p.knew + b * p.knew_batch + token * p.knew_row;
  Global<Element> to = (Global<Element>)p.k + page.number * p.k_page + page.key * p.k_key;
  const int items = p.hdim_q - pairs;  // of a head: pairs, then elements that are copied
  const i64 at = position(place);
  for (int e = thread; e < p.nhead_k * items; e += kThreads) {
    const int h = e / items, i = e % items, copied = i + pairs;
    if (i < pairs)
      rotate(p, from + h * p.knew_head, to + h * p.k_head, i, at);
    else
      to[h * p.k_head + copied] = from[h * p.knew_head + copied];
  }
  from = (Global<const Element>)p.vnew + b * p.vnew_batch + token * p.vnew_row;
  to = (Global<Element>)p.v + page.number * p.v_page + page.key * p.v_key;
  for (int e = thread; e < p.nhead_k * p.hdim_v; e += kThreads) {
    const int h = e / p.hdim_v, i = e % p.hdim_v;
    to[h * p.v_head + i] = from[h * p.vnew_head + i];
  }
}

}  // namespace tilekiln::hip

using namespace tilekiln::hip;

extern "C" __constant__ const AppendBuild tilekiln_fmha_append_build = {kThreads, kBf16, kFp8};

TILEKILN_KERNEL(kThreads) void tilekiln_fmha_append(AppendProblem p) { append(p); }
