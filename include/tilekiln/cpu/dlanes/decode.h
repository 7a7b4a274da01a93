// Attention of few queries with lanes along the head dim: the pairs of a query and a query head that read one key head, up to
// 16, against the keys they see. K and V are used where they lie, in pages or not: the products take an address per key.
//
//   S[row][key] = K[key] . Q[row]     P = 2^(S - m)     O[row][:] = alpha O[row][:] + P[row] V
#pragma once

#include "tilekiln/cpu/dlanes/products.h"
#include "tilekiln/cpu/dlanes/softmax_row.h"
#include "tilekiln/cpu/qlanes/cache_keys.h"
#include "tilekiln/fmha/window.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using fmha::Bias;

using StoreRow = void (*)(void* to, float* o, float factor, int hdim, bool even_odd);

// One way to hold rows of K and V: as the cache does, or copied (pad) where a head dim ends inside a register.
struct RowProducts {
  Scores scores;
  Values values;
  int k_dims, v_dims;  // head dims must be multiples of these
  bool even_odd;       // the order of O
};

struct RowStorage {
  LoadRows load_q;  // rows of kMaxHdim words
  RowProducts direct, padded;
  LoadRows pad_k, pad_v;
  Unpack unpack_k, unpack_v;
  RowStage bias;
  StoreRow store_row;
  int q_bytes, kv_bytes, out_bytes, bias_bytes;
};

struct RowScratch {
  alignas(64) float s[kMaxRows * kRowKeys], q[kMaxRows * kMaxHdim], o[kMaxRows * kMaxHdim];
  alignas(64) float k[kRowKeys * kMaxHdim], v[kRowKeys * kMaxHdim];  // padded rows
  alignas(64) char k_rows[kRowKeys * kMaxHdim * 4],
      v_rows[kRowKeys * kMaxHdim * 4];  // rows of a vectorized page, as stored
};

// q words: fp32, or pairs; 0 to the end of a register.
template <class T> void load_q_row_fp32(void* to, const void* from, i64, int, int hdim) {
  for (int d = 0; d < hdim; d += kLanes) store((float*)to + d, widen_some((const T*)from + d, hdim - d));
}
#if TILEKILN_PAIRS
template <class T> void load_q_row_pairs(void* to, const void* from, i64, int, int hdim) {
  for (int d = 0; d < hdim; d += 2 * kLanes) store_halves((bf16*)to + d, load_halves((const T*)from + d, hdim - d));
}
#endif

template <class Out> void store_row(void* to, float* o, float factor, int hdim, bool even_odd) {
  const vf f = broadcast(factor);
  for (int d = 0; d < hdim; d += 2 * kLanes) {
    if (even_odd) {
      alignas(64) float t[2 * kLanes];
      for (int i = 0; i < kLanes; ++i) {
        t[2 * i] = o[d + i];
        t[2 * i + 1] = o[d + kLanes + i];
      }
      __builtin_memcpy(o + d, t, sizeof t);
    }
    narrow_some((Out*)to + d, mul(load(o + d), f), hdim - d);
    if (hdim - d > kLanes) narrow_some((Out*)to + d + kLanes, mul(load(o + d + kLanes), f), hdim - d - kLanes);
  }
}

// Where each key of a block lies; after the last one it is repeated to the end of a vector.
struct Addresses { const char *k[kRowKeys + kAhead], *v[kRowKeys + kAhead]; };

class Rows {
 public:
  Rows(const RowStorage& storage, const KvProblem& a, const KvUnit& u, int head_k, bool padded, RowScratch& w)
      : storage_(storage),
        a_(a),
        w_(w),
        k_(cache_rows<false>(a, u, head_k, storage.kv_bytes)),
        v_(cache_rows<true>(a, u, head_k, storage.kv_bytes)),
        padded_(padded),
        vectorized_(a.pages.table && a.pages.layout == KvLayout::vectorized) {}

  // Of the keys [key, key + keys), and of those that will be fetched meanwhile, up to `end`.
  void find(Addresses& at, i64 key, int keys, i64 end) const {
    const int ahead = padded_ || vectorized_ ? keys : end - key < keys + kAhead ? int(end - key) : keys + kAhead;
    const i64 bytes = storage_.kv_bytes;
    const i64 k_step = bytes * (vectorized_ ? a_.hdim_q : a_.k_row),
              v_step = bytes * (vectorized_ ? a_.hdim_v : a_.v_row);
    for (int i = 0; i < ahead;) {
      const CacheRows::Run k_run = k_.run(key + i, ahead - i), v_run = v_.run(key + i, ahead - i);
      const char *k_row = k_run.address, *v_row = v_run.address;
      if (vectorized_) {
        storage_.unpack_k(w_.k_rows + i * k_step, k_run, bytes * a_.pages.k_chunk, a_.hdim_q);
        storage_.unpack_v(w_.v_rows + i * v_step, v_run, bytes * a_.pages.v_chunk, a_.hdim_v);
        k_row = w_.k_rows + i * k_step;
        v_row = w_.v_rows + i * v_step;
      }
      for (int j = 0; j < k_run.rows; ++j) {
        at.k[i + j] = k_row + j * k_step;
        at.v[i + j] = v_row + j * v_step;
      }
      i += k_run.rows;
    }
    if (padded_) pad(at, keys);
    for (int i = ahead; i < round_up(keys, kLanes) + kAhead; ++i) {
      at.k[i] = at.k[ahead - 1];
      at.v[i] = at.v[ahead - 1];
    }
  }

 private:
  void pad(Addresses& at, int keys) const {
    for (int i = 0; i < keys; ++i) {
      float *k_row = w_.k + i * kMaxHdim, *v_row = w_.v + i * kMaxHdim;
      storage_.pad_k(k_row, at.k[i], 0, 1, a_.hdim_q);
      storage_.pad_v(v_row, at.v[i], 0, 1, a_.hdim_v);
      at.k[i] = (const char*)k_row;
      at.v[i] = (const char*)v_row;
    }
  }

  const RowStorage& storage_;
  const KvProblem& a_;
  RowScratch& w_;
  CacheRows k_, v_;
  bool padded_, vectorized_;
};

TILEKILN_INLINE RowStage row_stage_of(const KvProblem& a, const RowStorage& storage) {
  if (a.features.bias == Bias::elementwise) return storage.bias;
  if (a.features.bias == Bias::alibi) return score_row<RowAlibi>;
  return a.features.softcap ? score_row<RowMap<SoftCapped>> : score_row<RowMap<Scaled>>;
}

inline void decode(const RowStorage& storage, const KvProblem& a, const KvUnit& u, RowScratch& w) {
  const int rows = u.rows * u.heads, head_k = u.head / (a.nhead_q / a.nhead_k);
  const bool padded = a.hdim_q % storage.direct.k_dims || a.hdim_v % storage.direct.v_dims;
  const RowProducts& products = padded ? storage.padded : storage.direct;
  const Descales descales = cache_descales(a, u, head_k);
  const RowStage stage = row_stage_of(a, storage);
  const int o_width = round_up(a.hdim_v, 2 * kLanes);

  // Row r is query u.row + r / heads of head u.head + r % heads. In log2 units nothing lies below kFloor.
  float m[kMaxRows], l[kMaxRows], alpha[kMaxRows];
  Score score[kMaxRows];
  const char* bias[kMaxRows];
  const fmha::Window window = fmha::window_of(a, u);
  for (int r = 0; r < rows; ++r) {
    const i64 row = u.row + r / u.heads, head = u.head + r % u.heads;
    storage.load_q(w.q + r * kMaxHdim,
                   (const char*)a.q + storage.q_bytes * (u.q_offset + head * a.q_head + row * a.q_row), 0, 1, a.hdim_q);
    score[r] = {a.softmax_scale * descales.q * kLog2e, a.softcap, 0.f, nullptr, 0, 1, 0, 0};
    if (a.features.bias == Bias::alibi) score[r].slope = -kLog2e * a.alibi_slopes[u.alibi_offset + head];
    bias[r] = (const char*)a.bias + storage.bias_bytes * (u.bias_offset + head * a.bias_head + row * a.bias_row);
    // A sink logit is one more key, seen first, whose V is 0.
    const bool sink = a.features.sink && a.sink && a.sink[head] > -1e29f && u.first_split;
    m[r] = sink ? a.sink[head] * kLog2e : kFloor;
    l[r] = sink ? 1.f : 0.f;
    __builtin_memset(w.o + r * kMaxHdim, 0, o_width * sizeof(float));
  }

  // The keys that some row sees: [begin, end), and those below the sink. A block has one page scale.
  const i64 shifted = u.row + window.shift;
  const i64 last_key = shifted + u.rows + window.right, end = u.key_end < last_key ? u.key_end : last_key;
  const i64 first_key = shifted - window.left, begin = first_key < u.key_begin ? u.key_begin : first_key;
  const Rows cache(storage, a, u, head_k, padded, w);
  Addresses at;
  for (i64 key = window.sink > u.key_begin ? u.key_begin : begin; key < end;) {
    if (key >= window.sink && key < begin) key = begin;
    if (key >= end) break;
    int keys = end - key < kRowKeys ? int(end - key) : kRowKeys;
    if (key < begin && keys > window.sink - key) keys = int(window.sink - key);
    if (descales.blocked() && keys > descales.keys - key % descales.keys)
      keys = int(descales.keys - key % descales.keys);
    cache.find(at, key, keys, end);
    products.scores(w.s, at.k, round_up(keys, kLanes), w.q, rows, a.hdim_q);

    const float k_scale = descales.blocked() ? descales.k[descales.at(key)] : 1.f;
    const float gain = descales.blocked() ? descales.v_blocks[descales.at(key)] : 1.f;
    for (int r = 0; r < rows; ++r) {
      const auto clamp = [&](i64 x) { return int(x < 0 ? 0 : x > keys ? keys : x); };
      const i64 row = shifted + r / u.heads;
      Score x = score[r];
      x.c *= k_scale;
      x.keys = keys;
      x.distance = row - key;
      x.bias = bias[r] + storage.bias_bytes * key;
      const Seen seen{clamp(row - window.left - key), clamp(row + window.right + 1 - key), clamp(window.sink - key)};
      float* s = w.s + r * kRowKeys;
      const float top = stage(s, x, seen, m[r]);
      alpha[r] = m[r] == top ? 1.f : __builtin_exp2f(m[r] - top);
      m[r] = top;
      l[r] = l[r] * alpha[r] + probability_row(s, keys, top, gain);
    }
    products.values(w.o, at.v, keys, w.s, alpha, rows, a.hdim_v);
    key += keys;
  }

  // O / l, 0 for a row that sees no key;  LSE = ln(2) (m + log2 l), then -inf
  for (int r = 0; r < rows; ++r) {
    const i64 row = u.row + r / u.heads, head = u.head + r % u.heads;
    char* out = (char*)a.out + storage.out_bytes * (u.out_offset + head * a.out_head + row * a.out_row);
    storage.store_row(out, w.o + r * kMaxHdim, l[r] == 0 ? 0.f : descales.v / l[r], a.hdim_v, products.even_odd);
    if (a.features.lse)
      a.lse[u.lse_offset + head * a.lse_head + row] = l[r] == 0 ? -kInfinity : kLn2 * m[r] + __builtin_logf(l[r]);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
