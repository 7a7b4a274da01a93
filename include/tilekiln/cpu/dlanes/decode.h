// Attention of few queries with lanes along the head dim: the pairs of a query and a query head that read one key head, up to
// 16, against the keys they see; of one query also the pairs of several key heads (stream.h). K and V are used where they lie,
// in pages or not: the products take an address per key.
//
//   S[row][key] = K[key] . Q[row]     P = 2^(S - m)     O[row][:] = alpha O[row][:] + P[row] V
#pragma once

#include "tilekiln/cpu/dlanes/products.h"
#include "tilekiln/cpu/dlanes/softmax_row.h"
#include "tilekiln/cpu/dlanes/stream.h"
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
  LoadRows load_q;             // rows of kMaxHdim words
  StreamScores stream_scores;  // rows as the cache holds them
  StreamValues stream_values;
  RowProducts direct, padded;
  LoadRows pad_k, pad_v;
  Unpack unpack_k, unpack_v;
  RowStage bias;
  StoreRow store_row;
  int q_bytes, kv_bytes, out_bytes, bias_bytes;
};

struct RowScratch {
  alignas(64) float s[kMaxStreamRows * kRowKeys], q[kMaxStreamRows * kMaxHdim], o[kMaxStreamRows * kMaxHdim];
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

// The rows of a unit between the products. Row r is query u.row + r / heads of head u.head + r % heads. In log2 units nothing
// lies below kFloor.
class RowState {
 public:
  RowState(const RowStorage& storage, const KvProblem& a, const KvUnit& u, const Descales& descales, RowScratch& w,
           i64 q_width = kMaxHdim, i64 o_width = kMaxHdim)
      : storage_(storage),
        a_(a),
        u_(u),
        descales_(descales),
        w_(w),
        stage_(row_stage_of(a, storage)),
        window_(fmha::window_of(a, u)),
        rows_(u.rows * u.heads),
        o_width_(o_width) {
    const int width = round_up(a.hdim_v, 2 * kLanes);
    for (int r = 0; r < rows_; ++r) {
      const i64 row = u.row + r / u.heads, head = u.head + r % u.heads;
      storage.load_q(w.q + r * q_width,
                     (const char*)a.q + storage.q_bytes * (u.q_offset + head * a.q_head + row * a.q_row), 0, 1,
                     a.hdim_q);
      score_[r] = {a.softmax_scale * descales.q * kLog2e, a.softcap, 0.f, nullptr, 0, 1, 0, 0};
      if (a.features.bias == Bias::alibi) score_[r].slope = -kLog2e * a.alibi_slopes[u.alibi_offset + head];
      bias_[r] = (const char*)a.bias + storage.bias_bytes * (u.bias_offset + head * a.bias_head + row * a.bias_row);
      // A sink logit is one more key, seen first, whose V is 0.
      const bool sink = a.features.sink && a.sink && a.sink[head] > -1e29f && u.first_split;
      m_[r] = sink ? a.sink[head] * kLog2e : kFloor;
      l_[r] = sink ? 1.f : 0.f;
      __builtin_memset(w.o + r * o_width, 0, width * sizeof(float));
    }
    // The keys that some row sees: [begin, end), and those below the sink.
    const i64 shifted = u.row + window_.shift, last_key = shifted + u.rows + window_.right;
    const i64 first_key = shifted - window_.left;
    end_ = u.key_end < last_key ? u.key_end : last_key;
    begin_ = first_key < u.key_begin ? u.key_begin : first_key;
  }

  i64 begin() const { return window_.sink > u_.key_begin ? u_.key_begin : begin_; }
  i64 end() const { return end_; }

  // The block of at most `most` keys that begins at `key` or behind it; false: there is none. It has one page scale.
  bool block(i64& key, int& keys, int most) const {
    if (key >= window_.sink && key < begin_) key = begin_;
    if (key >= end_) return false;
    keys = end_ - key < most ? int(end_ - key) : most;
    if (key < begin_ && keys > window_.sink - key) keys = int(window_.sink - key);
    if (descales_.blocked() && keys > descales_.keys - key % descales_.keys)
      keys = int(descales_.keys - key % descales_.keys);
    return true;
  }

  // S to P; what O is multiplied with before P V is added.
  void softmax(i64 key, int keys, float* alpha) {
    const float k_scale = descales_.blocked() ? descales_.k[descales_.at(key)] : 1.f;
    const float gain = descales_.blocked() ? descales_.v_blocks[descales_.at(key)] : 1.f;
    for (int r = 0; r < rows_; ++r) {
      const auto clamp = [&](i64 x) { return int(x < 0 ? 0 : x > keys ? keys : x); };
      const i64 row = u_.row + window_.shift + r / u_.heads;
      Score x = score_[r];
      x.c *= k_scale;
      x.keys = keys;
      x.distance = row - key;
      x.bias = bias_[r] + storage_.bias_bytes * key;
      const Seen seen{clamp(row - window_.left - key), clamp(row + window_.right + 1 - key), clamp(window_.sink - key)};
      float* s = w_.s + r * kRowKeys;
      const float top = stage_(s, x, seen, m_[r]);
      alpha[r] = m_[r] == top ? 1.f : __builtin_exp2f(m_[r] - top);
      m_[r] = top;
      l_[r] = l_[r] * alpha[r] + probability_row(s, keys, top, gain);
    }
  }

  // O / l, 0 for a row that sees no key;  LSE = ln(2) (m + log2 l), then -inf
  void finish(bool even_odd) const {
    for (int r = 0; r < rows_; ++r) {
      const i64 row = u_.row + r / u_.heads, head = u_.head + r % u_.heads;
      char* out = (char*)a_.out + storage_.out_bytes * (u_.out_offset + head * a_.out_head + row * a_.out_row);
      storage_.store_row(out, w_.o + r * o_width_, l_[r] == 0 ? 0.f : descales_.v / l_[r], a_.hdim_v, even_odd);
      if (a_.features.lse) {
        a_.lse[u_.lse_offset + head * a_.lse_head + row] =
            l_[r] == 0 ? -kInfinity : kLn2 * m_[r] + __builtin_logf(l_[r]);
      }
    }
  }

 private:
  const RowStorage& storage_;
  const KvProblem& a_;
  const KvUnit& u_;
  const Descales& descales_;
  RowScratch& w_;
  const RowStage stage_;
  const fmha::Window window_;
  const int rows_;
  const i64 o_width_;
  i64 begin_, end_;
  float m_[kMaxStreamRows], l_[kMaxStreamRows];
  Score score_[kMaxStreamRows];
  const char* bias_[kMaxStreamRows];
};

// The query heads of one key head.
inline void decode_head(const RowStorage& storage, const KvProblem& a, const KvUnit& u, RowScratch& w, bool padded) {
  const int rows = u.rows * u.heads, head_k = u.head / (a.nhead_q / a.nhead_k);
  const RowProducts& products = padded ? storage.padded : storage.direct;
  const Descales descales = cache_descales(a, u, head_k);
  RowState state(storage, a, u, descales, w);
  const Rows cache(storage, a, u, head_k, padded, w);
  Addresses at;
  float alpha[kMaxStreamRows];
  int keys = 0;
  for (i64 key = state.begin(); state.block(key, keys, kRowKeys); key += keys) {
    cache.find(at, key, keys, state.end());
    products.scores(w.s, at.k, round_up(keys, kLanes), w.q, rows, a.hdim_q);
    state.softmax(key, keys, alpha);
    products.values(w.o, at.v, keys, w.s, alpha, rows, a.hdim_v);
  }
  state.finish(products.even_odd);
}

// One query and every query head.
inline void decode_heads(const RowStorage& storage, const KvProblem& a, const KvUnit& u, RowScratch& w) {
  const int group = a.nhead_q / a.nhead_k, head_k = u.head / group;
  const Descales descales = cache_descales(a, u, head_k);
  const int q_width = a.hdim_q / storage.direct.k_dims * kLanes;
  RowState state(storage, a, u, descales, w, q_width, a.hdim_v);
  const CacheRows k_rows = cache_rows<false>(a, u, head_k, storage.kv_bytes),
                  v_rows = cache_rows<true>(a, u, head_k, storage.kv_bytes);
  const i64 bytes = storage.kv_bytes;
  // 8 to 16 KB ahead: what waits in L1 must leave room for q or O.
  const int ahead = u.heads / group * bytes * a.hdim_q >= 4096 ? 2 : kMostAhead;
  const HeadRows heads{group,   u.heads / group, a.hdim_q, a.hdim_v, bytes * a.k_head, bytes * a.v_head,
                       q_width, a.hdim_v,        ahead};
  const auto find = [&](const char** at, const CacheRows& rows, i64 key, int keys) {
    for (int i = 0; i < keys;) {
      const CacheRows::Run run = rows.run(key + i, keys - i);
      for (int j = 0; j < run.rows; ++j) at[i + j] = run.address + j * rows.row;
      i += run.rows;
    }
  };
  // Memory is read in this order: K of the block, its V, K of the next block.
  const char* order[3 * kStreamKeys + kMostAhead];
  float alpha[kMaxStreamRows];
  i64 key = state.begin();
  int keys = 0;
  bool some = state.block(key, keys, kStreamKeys);
  if (some) find(order, k_rows, key, keys);
  while (some) {
    i64 next = key + keys;
    int next_keys = 0;
    some = state.block(next, next_keys, kStreamKeys);
    find(order + keys, v_rows, key, keys);
    if (some) find(order + 2 * keys, k_rows, next, next_keys);
    for (int i = 2 * keys + next_keys; i < 3 * keys + kMostAhead; ++i) order[i] = order[i - 1];
    storage.stream_scores(w.s, order, keys, w.q, heads);
    state.softmax(key, keys, alpha);
    storage.stream_values(w.o, order + keys, keys, w.s, alpha, heads);
    __builtin_memmove(order, order + 2 * keys, next_keys * sizeof *order);
    key = next;
    keys = next_keys;
  }
  state.finish(storage.direct.even_odd);
}

inline void decode(const RowStorage& storage, const KvProblem& a, const KvUnit& u, RowScratch& w) {
  const int group = a.nhead_q / a.nhead_k;
  const bool padded = a.hdim_q % storage.direct.k_dims || a.hdim_v % storage.direct.v_dims;
  if (u.heads <= group) return decode_head(storage, a, u, w, padded);
  const bool vectorized = a.pages.table && a.pages.layout == KvLayout::vectorized;
  if (!padded && !vectorized && !a.k_page_scale && u.heads <= kMaxStreamRows) return decode_heads(storage, a, u, w);
  KvUnit one = u;  // rows that are copied, and page scales, are of one key head
  one.heads = group;
  for (; one.head < u.head + u.heads; one.head += group) decode_head(storage, a, one, w, padded);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
