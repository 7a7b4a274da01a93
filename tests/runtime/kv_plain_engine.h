// SPDX-License-Identifier: MIT
// An engine of the KV families that is as plain as it can be: fp32 and bf16, one row after another, in double. It reads
// the border (fmha/kv_engine.h) literally.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <vector>

#include "kernels/attention/kv_engine.h"

namespace plain {

using namespace tilekiln::fmha;

// Element i of an array of fp32 or bf16.
inline float load(const void* data, i64 i, bool bf16) {
  if (!bf16) return static_cast<const float*>(data)[i];
  const uint32_t bits = uint32_t(static_cast<const uint16_t*>(data)[i]) << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// Rounded to nearest even.
inline void store(void* data, i64 i, bool bf16, float value) {
  if (!bf16) {
    static_cast<float*>(data)[i] = value;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Element d of key j.
inline float element(const KvProblem& p, const KvUnit& u, int head_k, i64 j, int d, bool keys) {
  const bool bf16 = p.dtype == KvDtype::bf16;
  const void* const data = keys ? p.k : p.v;
  const i64 place = u.first_key + j, head = head_k * (keys ? p.k_head : p.v_head), row = keys ? p.k_row : p.v_row;
  if (p.pages.table == nullptr) return load(data, (keys ? u.k_offset : u.v_offset) + head + place * row + d, bf16);
  const i64 page = p.pages.table[u.pages_offset + place / p.pages.page_size], in = place % p.pages.page_size;
  const i64 at = page * (keys ? p.pages.k_page : p.pages.v_page) + head;
  const int vec = bf16 ? 8 : 4;
  if (p.pages.layout == KvLayout::linear) return load(data, at + in * row + d, bf16);
  return load(
      data,
      at + (keys ? d / vec * p.pages.k_chunk + in * vec + d % vec : in / vec * p.pages.v_chunk + d * vec + in % vec),
      bf16);
}

inline bool sees(const KvProblem& p, const KvUnit& u, i64 row, i64 key) {
  if (!p.features.mask) return true;
  const i64 position = row + (p.top_left ? 0 : u.seqlen_k - u.seqlen_q);
  if (p.window_right >= 0 && key > position + p.window_right) return false;
  return p.window_left < 0 || key >= position - p.window_left || key < p.sink_keys;
}

inline void attend(const KvProblem& p, const KvUnit& u, bool split, void* scratch) {
  static_cast<char*>(scratch)[63] = 1;
  const int group = p.nhead_q / p.nhead_k;
  const bool bf16 = p.dtype == KvDtype::bf16;
  for (int head = u.head; head < u.head + u.heads; ++head) {
    for (int row = u.row; row < u.row + u.rows; ++row) {
      const i64 q = u.q_offset + head * p.q_head + row * p.q_row;
      std::vector<double> sum(static_cast<size_t>(p.hdim_v), 0);
      double max = -INFINITY, total = 0;
      std::vector<std::pair<int, double>> scores;
      for (int key = u.key_begin; key < u.key_end; ++key) {
        if (!sees(p, u, row, key)) continue;
        double s = 0;
        for (int d = 0; d < p.hdim_q; ++d)
          s += double(load(p.q, q + d, bf16)) * element(p, u, head / group, key, d, true);
        s *= p.softmax_scale;
        if (p.features.softcap) s = p.softcap * tanh(s / p.softcap);
        if (p.features.bias == Bias::elementwise)
          s += load(p.bias, u.bias_offset + head * p.bias_head + row * p.bias_row + key, bf16);
        if (p.features.bias == Bias::alibi) {
          const i64 shift = p.top_left ? 0 : u.seqlen_k - u.seqlen_q;
          s -= p.alibi_slopes[u.alibi_offset + head] * fabs(double(row + shift - key));
        }
        scores.emplace_back(key, s);
        max = fmax(max, s);
      }
      const bool sink = p.features.sink && p.sink != nullptr && u.first_split;
      if (sink) max = fmax(max, p.sink[head]);
      for (const auto& [key, s] : scores) {
        const double weight = exp(s - max);
        total += weight;
        for (int d = 0; d < p.hdim_v; ++d)
          sum[static_cast<size_t>(d)] += weight * element(p, u, head / group, key, d, false);
      }
      if (sink) total += exp(p.sink[head] - max);
      for (int d = 0; d < p.hdim_v; ++d) {
        store(p.out, u.out_offset + head * p.out_head + row * p.out_row + d, bf16 && !split,
              total > 0 ? static_cast<float>(sum[static_cast<size_t>(d)] / total * p.out_scale) : 0);
      }
      if (split || p.features.lse)
        p.lse[u.lse_offset + head * p.lse_head + row] = total > 0 ? static_cast<float>(max + log(total)) : -INFINITY;
    }
  }
}

inline void tile(const KvProblem& p, const KvUnit& u, void* scratch) { attend(p, u, false, scratch); }
inline void split(const KvProblem& p, const KvUnit& u, void* scratch) { attend(p, u, true, scratch); }

inline void combine(const CombineProblem& p, const CombineUnit& u) {
  for (int row = u.row; row < u.row_end; ++row) {
    const float* const lse = p.lse_acc + u.lse_acc_offset + u.head * p.lse_acc_head + row;
    const float* const acc = p.o_acc + u.o_acc_offset + u.head * p.o_acc_head + row * p.o_acc_row;
    double max = -INFINITY, total = 0;
    for (int s = 0; s < p.nsplits; ++s) max = fmax(max, lse[s * p.lse_acc_split]);
    for (int s = 0; s < p.nsplits && max > -INFINITY; ++s) total += exp(lse[s * p.lse_acc_split] - max);
    for (int d = 0; d < p.hdim_v; ++d) {
      double sum = 0;
      for (int s = 0; s < p.nsplits && total > 0; ++s)
        sum += exp(lse[s * p.lse_acc_split] - max) / total * acc[s * p.o_acc_split + d];
      static_cast<float*>(p.out)[u.out_offset + u.head * p.out_head + row * p.out_row + d] =
          static_cast<float>(sum * p.out_scale);
    }
    if (p.lse != nullptr)
      p.lse[u.lse_offset + u.head * p.lse_head + row] = total > 0 ? static_cast<float>(max + log(total)) : -INFINITY;
  }
}

// `from` to `to` (the same for q), rotated for a position.
inline void rotate(const AppendProblem& p, const float* from, float* to, int hdim, i64 position) {
  const std::vector<float> x(from, from + hdim);
  for (int d = 0; d < hdim; ++d) to[d] = x[static_cast<size_t>(d)];
  const float* const cos = static_cast<const float*>(p.rotary_cos) + position * p.rotary_cos_row;
  const float* const sin = static_cast<const float*>(p.rotary_sin) + position * p.rotary_sin_row;
  for (int i = 0; i < p.rotary_dim / 2; ++i) {
    const size_t a = static_cast<size_t>(p.rope == Rope::interleaved ? 2 * i : i);
    const size_t b = static_cast<size_t>(p.rope == Rope::interleaved ? 2 * i + 1 : i + p.rotary_dim / 2);
    to[a] = x[a] * cos[i] - x[b] * sin[i];
    to[b] = x[b] * cos[i] + x[a] * sin[i];
  }
}

inline void append(const AppendProblem& p, const AppendUnit& u) {
  for (int head = 0; p.q != nullptr && head < p.nhead_q; ++head) {
    for (int row = u.q_row; row < u.q_row_end; ++row) {
      float* const q = static_cast<float*>(p.q) + u.q_offset + head * p.q_head + row * p.q_row;
      rotate(p, q, q, p.hdim_q, u.seqlen_k + (p.q_advances ? row : 0));
    }
  }
  for (int head = 0; head < p.nhead_k; ++head) {
    for (int row = u.new_row; row < u.new_row_end; ++row) {
      const i64 place = u.first_key + u.seqlen_k + row;
      i64 k_at = u.k_offset + place * p.k_row, v_at = u.v_offset + place * p.v_row;
      if (p.pages.table != nullptr) {
        const i64 page = p.pages.table[u.pages_offset + place / p.pages.page_size], in = place % p.pages.page_size;
        k_at = page * p.pages.k_page + in * p.k_row;
        v_at = page * p.pages.v_page + in * p.v_row;
      }
      const float* const knew =
          static_cast<const float*>(p.knew) + u.knew_offset + head * p.knew_head + row * p.knew_row;
      const float* const vnew =
          static_cast<const float*>(p.vnew) + u.vnew_offset + head * p.vnew_head + row * p.vnew_row;
      rotate(p, knew, static_cast<float*>(p.k) + k_at + head * p.k_head, p.hdim_q, u.seqlen_k + row);
      for (int d = 0; d < p.hdim_v; ++d) (static_cast<float*>(p.v) + v_at + head * p.v_head)[d] = vnew[d];
    }
  }
}

constexpr KvEngine engine(int tile_q) { return {{tile, nullptr, tile}, {split}, {combine}, {append}, 64, tile_q, 64}; }

}  // namespace plain
