// SPDX-License-Identifier: MIT
// New keys and values into a KV cache in place, rotated on the way; queries rotated in place. A workgroup is a token of a sequence.
//
// A rotation is in fp32, every product and sum rounded, and the result once: the bytes are those of the CPU.
// Emulated (functional), never run on AMD silicon. Compile time: TK_BF16, TK_FP8 (bytes, without rotation), TK_THREADS.
#include "kernels/attention/hip/places.h"
#include "kernels/attention/fmha_fwd_appendkv/hip/problem.h"

namespace tilekiln::hip {

using Element = Choose<TK_FP8, unsigned char, T>;

TK_DEVICE float entry(const AppendProblem& p, const void* table, i64 at) {
  return p.rotary_fp32 ? ((const TK_GLOBAL float*)table)[at] : float(((const TK_GLOBAL Element*)table)[at]);
}

/// a b, rounded: a compiler that is told to be fast makes one operation of a product and the sum it goes into, whatever a pragma says.
TK_DEVICE float product(float a, float b) {
  float made = a * b;
  asm("" : "+v"(made));
  return made;
}

/// Pair i of a head's row; bytes are not rotated.
TK_DEVICE void rotate(const AppendProblem& p, const TK_GLOBAL Element* from, TK_GLOBAL Element* to, int i, i64 position) {
  const int first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + p.rotary_dim / 2;
  const float cos = entry(p, p.rotary_cos, position * p.cos_row + i);
  const float sin = entry(p, p.rotary_sin, position * p.sin_row + i);
  const float x0 = float(from[first]), x1 = float(from[second]);
  to[first] = Element(product(x0, cos) - product(x1, sin));
  to[second] = Element(product(x1, cos) + product(x0, sin));
}

TK_DEVICE void append(const AppendProblem& p) {
  const int b = __builtin_amdgcn_workgroup_id_y(), token = __builtin_amdgcn_workgroup_id_x();
  const int thread = __builtin_amdgcn_workitem_id_x(), pairs = p.rotary_dim / 2;
  const fmha::Keys keys = fmha::find_keys(p.at, b);
  const auto position = [&](i64 at) TK_INLINE { return at < 0 ? 0 : at < p.positions ? at : p.positions - 1; };
  if (p.q && token < p.at.seqlen_q_most) {
    TK_GLOBAL Element* const row = (TK_GLOBAL Element*)p.q + b * p.q_batch + token * p.q_row;
    const i64 at = position(i64(keys.count) + (p.q_advances ? token : 0));
    for (int e = thread; e < p.nhead_q * pairs; e += TK_THREADS) {
      TK_GLOBAL Element* const head = row + e / pairs * p.q_head;
      rotate(p, head, head, e % pairs, at);
    }
  }
  const i64 place = i64(keys.count) + token;
  if (token >= p.seqlen_new || place >= p.at.room_k) return;
  const fmha::Page page = fmha::find_page(p.at, keys, int(place));
  const TK_GLOBAL Element* from = (const TK_GLOBAL Element*)p.knew + b * p.knew_batch + token * p.knew_row;
  TK_GLOBAL Element* to = (TK_GLOBAL Element*)p.k + page.number * p.k_page + page.key * p.k_key;
  const int items = p.hdim_q - pairs;  // of a head: pairs, then elements that are copied
  const i64 at = position(place);
  for (int e = thread; e < p.nhead_k * items; e += TK_THREADS) {
    const int h = e / items, i = e % items, copied = i + pairs;
    if (i < pairs)
      rotate(p, from + h * p.knew_head, to + h * p.k_head, i, at);
    else
      to[h * p.k_head + copied] = from[h * p.knew_head + copied];
  }
  from = (const TK_GLOBAL Element*)p.vnew + b * p.vnew_batch + token * p.vnew_row;
  to = (TK_GLOBAL Element*)p.v + page.number * p.v_page + page.key * p.v_key;
  for (int e = thread; e < p.nhead_k * p.hdim_v; e += TK_THREADS) {
    const int h = e / p.hdim_v, i = e % p.hdim_v;
    to[h * p.v_head + i] = from[h * p.vnew_head + i];
  }
}

}  // namespace tilekiln::hip

using namespace tilekiln::hip;

extern "C" __attribute__((constant, used)) const AppendBuild tilekiln_fmha_append_build = {TK_THREADS, TK_BF16, TK_FP8};

TK_KERNEL __attribute__((amdgpu_flat_work_group_size(TK_THREADS, TK_THREADS))) void tilekiln_fmha_append(AppendProblem p) {
  append(p);
}
