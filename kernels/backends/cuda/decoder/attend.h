// SPDX-License-Identifier: MIT
// Attention of a step: a CTA has some keys of a sequence and of a head of keys, which are split where there are many.
// -D: HDIM.
#pragma once

#include "kernels/backends/cuda/decoder/team.h"

namespace tilekiln::cuda::decoder {

constexpr int kLanes = HDIM / 8, kSlots = 32 / kLanes;  // lanes of a key, and keys that a warp looks at together
constexpr int kAtOnce = 4;                              // of those, that are asked for together
constexpr int kPartRow = HDIM + 2;                      // sums of a head's values, their weight, the largest score
static_assert(kWarps * kHeads * kPartRow * 4 <= kSumBytes, "parts of warps lie where sums do");

struct Attention : Team {
  // Half a pair each in lanes d and d ^ kLanes / 2, rotated in fp32 and rounded once.
  __device__ __forceinline__ uint4 rotated(uint4 v, const float (&cos)[8], const float (&sin)[8], int d) const {
    float x[8];
    widen(v, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float other = __shfl_xor_sync(~0u, x[i], kLanes / 2), turned = __fmul_rn(other, sin[i]);
      const float kept = __fmul_rn(x[i], cos[i]);
      x[i] = d < kLanes / 2 ? __fadd_rn(kept, -turned) : __fadd_rn(kept, turned);
    }
    return narrow(x);
  }

  // Keys of a split that a lane has seen, of a head.
  struct Seen { float most = -1e30f, weight = 0, sum[8] = {}; };

  struct Split { int row, head, first, pair, number, used, begin, end, last; };
  // Items of the heads that share one of keys.
  __device__ __forceinline__ int parts_of_group() const { return (p.heads / p.kv_heads + kHeads - 1) / kHeads; }
  __device__ __forceinline__ int items() const { return p.rows * p.kv_heads * parts_of_group() * p.splits; }
  __device__ __forceinline__ Split split_of(int item) const {
    const int of_key = parts_of_group(), of_row = p.kv_heads * of_key, all = p.rows * of_row;
    const int number = item / all, pair = item % all, row = pair / of_row, rest = pair % of_row;
    const int last = min(p.lengths[row], int(p.cache_head / HDIM) - 1), length = last + 1;  // no farther than rooms
    int used = min(p.splits, (length + kLeastKeys - 1) / kLeastKeys);
    const int keys = (length + used - 1) / used;
    used = (length + keys - 1) / keys;
    const int begin = number * keys;
    return {row, rest / of_key, rest % of_key * kHeads, pair, number, used, begin, min(begin + keys, length), last};
  }

  // Keys and values of a lane, asked for together.
  struct Keys { uint4 k[kAtOnce], v[kAtOnce]; };
  __device__ __forceinline__ int key_of(int from, int i) const {
    return from + (i * kWarps + warp) * kSlots + lane / kLanes;
  }
  __device__ __forceinline__ int64_t place_of(const Split& of) const {
    return of.row * p.cache_row + of.head * p.cache_head + lane % kLanes * 8;
  }
  // Loads keys from `from` on; the new one is in no cache yet.
  __device__ __forceinline__ Keys load_keys(const Layer& layer, const Split& of, int from) const {
    Keys keys;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int key = key_of(from, i);
      const bool there = key < of.end && key != of.last;
      const int64_t at = place_of(of) + int64_t(there ? key : 0) * HDIM;
      keys.k[i] = load_vector_if(there, layer.keys + at);
      keys.v[i] = load_vector_if(there, layer.values + at);
    }
    return keys;
  }
  // Facts of the first item of a CTA, known before the others have come.
  struct Ahead {
    Split of;
    bool there;
  };
  __device__ __forceinline__ Ahead ahead_of(int item) const {
    Ahead ahead = {};
    ahead.there = item < items();
    if (!ahead.there) return ahead;
    ahead.of = split_of(item);
    ahead.there = ahead.of.number < ahead.of.used;
    return ahead;
  }

  // Heads of an item over the keys of its split: to sums, a part of each warp. keys: the first ones.
  __device__ __forceinline__ void look(const Layer& layer, const Ahead& ahead, Keys keys) {
    const Split& of = ahead.of;
    const int first = of.first, group = p.heads / p.kv_heads;
    const int slot = lane / kLanes, d = lane % kLanes;
    const int64_t line = int64_t(p.heads + 2 * p.kv_heads) * HDIM;
    const uint16_t* const row = p.qkv + of.row * line + d * 8;
    uint4 q4[kHeads];
#pragma unroll
    for (int g = 0; g < kHeads; ++g)
      q4[g] = load_vector_if(first + g < group, row + int64_t(of.head * group + first + g) * HDIM);
    uint4 new_key = load_vector_if(true, row + int64_t(p.heads + of.head) * HDIM);
    const uint4 new_value = load_vector_if(true, row + int64_t(p.heads + p.kv_heads + of.head) * HDIM);
    const int of_table = d % (kLanes / 2) * 8;
    const uint4 cos8 = load_vector_if(true, p.cos + of.last * p.cos_row + of_table);
    const uint4 sin8 = load_vector_if(true, p.sin + of.last * p.sin_row + of_table);
    float cos[8], sin[8];
    widen(cos8, cos), widen(sin8, sin);
    new_key = rotated(new_key, cos, sin, d);
    float q[kHeads][8];
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      widen(rotated(q4[g], cos, sin, d), q[g]);
#pragma unroll
      for (int i = 0; i < 8; ++i) q[g][i] *= p.scale;
    }
    const bool appends = first == 0 && warp == 0 && slot == 0 && of.number == of.used - 1;
    const int64_t to = place_of(of) + int64_t(of.last) * HDIM;
    store_if(appends, layer.keys + to, new_key);
    store_if(appends, layer.values + to, new_value);
    Seen seen[kHeads];
    constexpr int kStep = kAtOnce * kWarps * kSlots;
    for (int from = of.begin; from < of.end; from += kStep) {
      if (from != of.begin) keys = load_keys(layer, of, from);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (from + (i * kWarps + warp) * kSlots >= of.end) break;
        const int key = key_of(from, i);
        const bool is_new = key == of.last;
        look_at(seen, q, is_new ? new_key : keys.k[i], is_new ? new_value : keys.v[i], key < of.end);
      }
    }
    leave_parts(seen);
  }
  static __device__ __forceinline__ void look_at(Seen (&seen)[kHeads], const float (&q)[kHeads][8], uint4 k4, uint4 v4,
                                                 bool there) {
    float k[8], v[8];
    widen(k4, k), widen(v4, v);
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      float score = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) score = fmaf(q[g][i], k[i], score);
#pragma unroll
      for (int i = kLanes / 2; i > 0; i /= 2) score += __shfl_xor_sync(~0u, score, i);
      Seen& one = seen[g];
      const float most = there ? fmaxf(one.most, score) : one.most;
      const float kept = exp2_approx(one.most - most), weight = there ? exp2_approx(score - most) : 0.f;
      one.most = most, one.weight = one.weight * kept + weight;
#pragma unroll
      for (int i = 0; i < 8; ++i) one.sum[i] = fmaf(weight, v[i], one.sum[i] * kept);
    }
  }
  __device__ __forceinline__ void leave_parts(Seen (&seen)[kHeads]) const {
    const int d = lane % kLanes;
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      Seen& one = seen[g];
#pragma unroll
      for (int i = kLanes; i < 32; i *= 2) {
        const float other = __shfl_xor_sync(~0u, one.most, i), most = fmaxf(one.most, other);
        const float kept = exp2_approx(one.most - most);
        one.most = most, one.weight *= kept;
        one.weight += __shfl_xor_sync(~0u, one.weight, i);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          one.sum[e] *= kept;
          one.sum[e] += __shfl_xor_sync(~0u, one.sum[e], i);
        }
      }
      if (lane >= kLanes) continue;
      float* const to = sums + (warp * kHeads + g) * kPartRow;
#pragma unroll
      for (int e = 0; e < 8; e += 2)
        *reinterpret_cast<float2*>(to + d * 8 + e) = make_float2(one.sum[e], one.sum[e + 1]);
      if (d == 0) *reinterpret_cast<float2*>(to + HDIM) = make_float2(one.weight, one.most);
    }
  }

  // Adds up `count` parts that lie `stride` numbers apart: a sum of weighted values, their weight, the largest score.
  static __device__ __forceinline__ void add_up(const float* from, int count, int64_t stride, int e, float& value,
                                                float& weight, float& most) {
    most = -1e30f, weight = value = 0;
    for (int i = 0; i < count; ++i) most = fmaxf(most, from[i * stride + HDIM + 1]);
    for (int i = 0; i < count; ++i) {
      const float by = exp2_approx(from[i * stride + HDIM + 1] - most);
      weight = fmaf(by, from[i * stride + HDIM], weight), value = fmaf(by, from[i * stride + e], value);
    }
  }

  // keys: the first ones of the first item.
  __device__ __forceinline__ void attend(const Layer& layer, const Ahead& first_item, const Keys& first_keys) {
    for (int item = blockIdx.x; item < items(); item += gridDim.x) {
      const bool is_first = item == int(blockIdx.x);
      const Ahead ahead = is_first ? first_item : ahead_of(item);
      if (!ahead.there) continue;
      const Split& of = ahead.of;
      const int count = min(kHeads, p.heads / p.kv_heads - of.first) * HDIM;
      const int64_t head = int64_t(of.row * p.heads + of.head * (p.heads / p.kv_heads) + of.first);
      uint16_t* const to = p.attended + head * HDIM;
      float* const parts = p.parts + head * p.splits * kPartRow;  // (heads, splits, kPartRow)
      look(layer, ahead, is_first ? first_keys : load_keys(layer, of, of.begin));
      sync();
      for (int i = threadIdx.x; i < count; i += 32 * kWarps) {
        const int g = i / HDIM, e = i % HDIM;
        float value, weight, most;
        add_up(sums + g * kPartRow, kWarps, kHeads * kPartRow, e, value, weight, most);
        if (of.used == 1) {
          store_if(true, to + i, pack(value / weight, 0.f));
          continue;
        }
        float* const part = parts + (int64_t(g) * p.splits + of.number) * kPartRow;
        part[e] = value;
        if (e == 0) part[HDIM] = weight, part[HDIM + 1] = most;
      }
      sync();
      if (of.used == 1) continue;
      if (threadIdx.x == 0) {
        unsigned before;
        asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(p.arrived + of.pair), "r"(of.used - 1)
                     : "memory");
        *word = before;
      }
      sync();
      for (int i = threadIdx.x; i < count && *word == unsigned(of.used - 1); i += 32 * kWarps) {
        float value, weight, most;
        add_up(parts + int64_t(i / HDIM) * p.splits * kPartRow, of.used, kPartRow, i % HDIM, value, weight, most);
        store_if(true, to + i, pack(value / weight, 0.f));
      }
      sync();
    }
  }
};

}  // namespace tilekiln::cuda::decoder
