// Attention of few queries with lanes along the head dim: the pairs of a query and a query head that read one key head, up to
// 16, against the keys they see; or one query of every query head, where the key heads of a key lie side by side, so that memory
// is read in one stream. K and V are used where they lie, in pages or not: the products take an address per key.
//
//   S[row][key] = K[key] . Q[row]     P = 2^(S - m)     O[row][:] = alpha O[row][:] + P[row] V
//
// m is the maximum so far rounded up to an integer: so the bits of P, which may be rounded to bf16, do not depend on the keys
// that came before, and the results of splits add up to those of the whole.
#pragma once

#include "kernels/attention/cpu/dlanes/score_products.h"
#include "kernels/attention/cpu/dlanes/softmax_row.h"
#include "kernels/attention/cpu/dlanes/value_products.h"
#include "kernels/attention/cpu/qlanes/cache_keys.h"
#include "kernels/attention/window.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using fmha::Bias;

using StoreRow = void (*)(void* to, float* o, float factor, int hdim, ValueOrder);

// One way to hold rows of K and V: as the cache does, or copied (padded) where a head dim ends inside a register.
struct RowProducts {
  Scores scores;
  Values values_of_one, values_of_several;  // rows of a key head
  ValueOrder one, several;                  // the order of O
  bool twos, pairs;                         // of several rows: q lies in twos; P is bf16
  int k_dims, v_dims;                       // head dims must be multiples of these
};

struct RowStorage {
  LoadRows load_q;  // a row of words
  RowProducts direct, padded;
  LoadRows pad_k, pad_v;
  Unpack unpack_k, unpack_v;
  RowStage bias;
  StoreRow store_row;
  int q_bytes, kv_bytes, out_bytes, bias_bytes;
};

struct RowScratch {
  alignas(64) float s[kMaxStreamRows * kMostKeys], q[kMaxStreamRows * kMaxHdim], o[kMaxStreamRows * kMaxHdim];
  alignas(64) float o_before[kMaxStreamRows * kMaxHdim];               // O, should V of a hidden key be no number
  alignas(64) float k[kMostKeys * kMaxHdim], v[kMostKeys * kMaxHdim];  // padded rows
  alignas(64) char k_rows[kMostKeys * kMaxHdim * 4],
      v_rows[kMostKeys * kMaxHdim * 4];  // rows of a vectorized page, as stored
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

// Dims [0, 2 kLanes) of O in order.
TILEKILN_INLINE void in_order(float* o, ValueOrder order) {
  if (order == ValueOrder::plain) return;
  float t[2 * kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const int even = order == ValueOrder::even_odd ? 2 * i : i / 4 * 8 + i % 4;
    t[even] = o[i];
    t[even + (order == ValueOrder::even_odd ? 1 : 4)] = o[kLanes + i];
  }
  __builtin_memcpy(o, t, sizeof t);
}

template <class Out> void store_row(void* to, float* o, float factor, int hdim, ValueOrder order) {
  const vf f = broadcast(factor);
  for (int d = 0; d < hdim; d += 2 * kLanes) {
    in_order(o + d, order);
    narrow_some((Out*)to + d, mul(load(o + d), f), hdim - d);
    if (hdim - d > kLanes) narrow_some((Out*)to + d + kLanes, mul(load(o + d + kLanes), f), hdim - d - kLanes);
  }
}

// The rows of K, or of V, of a unit: where each key lies, and copies of rows that the products cannot use there.
class CachedRows {
 public:
  template <bool IsValue>
  static CachedRows of(const RowStorage& storage, const KvProblem& a, const KvUnit& u, int head_k, bool padded,
                       RowScratch& w) {
    CachedRows r{cache_rows<IsValue>(a, u, head_k, storage.kv_bytes)};
    const int hdim = IsValue ? a.hdim_v : a.hdim_q;
    r.hdim_ = hdim;
    r.row_ = i64(storage.kv_bytes) * hdim;
    if (a.pages.table && a.pages.layout == KvLayout::vectorized) {
      r.unpack_ = IsValue ? storage.unpack_v : storage.unpack_k;
      r.chunk_ = storage.kv_bytes * (IsValue ? a.pages.v_chunk : a.pages.k_chunk);
      r.unpacked_ = IsValue ? w.v_rows : w.k_rows;
    }
    if (padded) {
      r.pad_ = IsValue ? storage.pad_v : storage.pad_k;
      r.padded_ = IsValue ? w.v : w.k;
    }
    return r;
  }

  // The addresses of rows in the cache. In vectorized pages a row has no address of its own: each key gets as many bytes of its
  // page, so that fetching all of them fetches the page.
  void find(const char** at, i64 key, int keys) const {
    for (int i = 0; i < keys;) {
      const CacheRows::Run run = rows_.run(key + i, keys - i);
      const i64 row = unpack_ ? row_ : rows_.row;
      const char* const first = run.address + (unpack_ ? run.place * row_ : 0);
      for (int j = 0; j < run.rows; ++j) at[i + j] = first + j * row;
      i += run.rows;
    }
  }

  // The rows that products read: `at` itself, or the addresses of unpacked or padded copies, written to `copies`.
  const char* const* usable(const char* const* at, const char** copies, i64 key, int keys) const {
    if (!unpack_ && !pad_) return at;
    if (unpack_) {
      for (int i = 0; i < keys;) {
        const CacheRows::Run run = rows_.run(key + i, keys - i);
        unpack_(unpacked_ + i * row_, run, chunk_, hdim_);
        i += run.rows;
      }
    }
    for (int i = 0; i < keys; ++i) {
      copies[i] = unpack_ ? unpacked_ + i * row_ : at[i];
      if (!pad_) continue;
      pad_(padded_ + i * kMaxHdim, copies[i], 0, 1, hdim_);
      copies[i] = (const char*)(padded_ + i * kMaxHdim);
    }
    return copies;
  }

 private:
  explicit CachedRows(const CacheRows& rows) : rows_(rows) {}

  CacheRows rows_;
  int hdim_ = 0;
  i64 row_ = 0, chunk_ = 0;  // bytes
  Unpack unpack_ = nullptr;
  LoadRows pad_ = nullptr;
  char* unpacked_ = nullptr;
  float* padded_ = nullptr;
};

TILEKILN_INLINE RowStage row_stage_of(const KvProblem& a, const RowStorage& storage) {
  if (a.features.bias == Bias::elementwise) return storage.bias;
  if (a.features.bias == Bias::alibi)
    return a.features.softcap ? score_row<RowAlibi<SoftCapped>> : score_row<RowAlibi<Scaled>>;
  return a.features.softcap ? score_row<RowMap<SoftCapped>> : score_row<RowMap<Scaled>>;
}

// The rows of a unit between the products. Row r is query u.row + r / heads of head u.head + r % heads.
class RowState {
 public:
  RowState(const RowStorage& storage, const KvProblem& a, const KvUnit& u, const Descales& descales, RowScratch& w,
           const HeadRows& heads, bool twos)
      : storage_(storage),
        a_(a),
        u_(u),
        descales_(descales),
        w_(w),
        heads_(heads),
        twos_(twos),
        stage_(row_stage_of(a, storage)),
        window_(fmha::window_of(a, u)),
        rows_(u.rows * u.heads) {
    for (int r = 0; r < rows_; ++r) {
      const i64 row = u.row + r / u.heads, head = u.head + r % u.heads;
      load_q(r, (const char*)a.q + storage.q_bytes * (u.q_offset + head * a.q_head + row * a.q_row));
      score_[r] = {kLog2e, a.softmax_scale * descales.q * kLog2e, a.softcap * kLog2e, 0.f, nullptr, 0, 1, 0, 0};
      if (a.features.bias == Bias::alibi) score_[r].slope = -kLog2e * a.alibi_slopes[u.alibi_offset + head];
      bias_[r] = (const char*)a.bias + storage.bias_bytes * (u.bias_offset + head * a.bias_head + row * a.bias_row);
      m_[r] = kLowest;
      store(l_[r], zero());
      if (a.features.sink && a.sink && u.first_split) start_with(r, a.sink[head]);
    }
    __builtin_memset(w.o, 0, rows_ * heads.o_width * sizeof(float));
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

  // Replaces S by P, in bf16 where `pairs`, and sets alpha[row], the factor of O before P V is added to it.
  void softmax(i64 key, int keys, bool pairs, float* alpha) {
    const float k_scale = descales_.blocked() ? descales_.k[descales_.at(key)] : 1.f;
    const float gain = descales_.blocked() ? descales_.v_blocks[descales_.at(key)] : 1.f;
    hides_ = false;
    for (int r = 0; r < rows_; ++r) {
      const i64 row = u_.row + window_.shift + r / u_.heads;
      Score x = score_[r];
      x.c *= k_scale;
      x.keys = keys;
      x.distance = row - key;
      x.bias = bias_[r] + storage_.bias_bytes * key;
      const Seen seen = seen_by(r, key, keys);
      hides_ |= seen.last < keys || seen.first > seen.sink;
      float* s = w_.s + r * kMostKeys;
      const vf top = stage_(s, x, seen, m_[r]);
      alpha[r] = 1;
      if (any_above(top, broadcast(m_[r]))) {  // seldom after the first blocks
        const float m = __builtin_ceilf(highest(top));
        alpha[r] = __builtin_exp2f(m_[r] - m);
        m_[r] = m;
      }
      const vf sum = pairs ? probability_row<bf16>(s, keys, m_[r], gain) : probability_row<float>(s, keys, m_[r], gain);
      store(l_[r], fma(load(l_[r]), broadcast(alpha[r]), sum));
    }
  }

  // O = alpha O + P V of the keys, `v` being their addresses. What V of a key holds does not reach rows that do not see it: their P is
  // 0, but 0 times NaN is not. Should O be no number afterwards, it is put back and the keys come one at a time.
  void add_values(Values values, const char* const* v, const FetchRows* fetch, i64 key, int keys, bool pairs,
                  const float* alpha) {
    if (!hides_) return values(w_.o, v, fetch, keys, w_.s, alpha, heads_);
    const int size = rows_ * heads_.o_width;
    __builtin_memcpy(w_.o_before, w_.o, size * sizeof(float));
    values(w_.o, v, fetch, keys, w_.s, alpha, heads_);
    vf sum = zero();
    for (int i = 0; i < size; i += kLanes) sum = fma(load(w_.o + i), zero(), sum);
    if (!any_above(abs(sum), zero())) return;
    __builtin_memcpy(w_.o, w_.o_before, size * sizeof(float));
    values(w_.o, v, fetch, 0, w_.s, alpha, heads_);  // alpha O
    float same[kMaxStreamRows];
    for (int r = 0; r < rows_; ++r) {
      same[r] = 1;
      // P is read two keys at a time, the last one with what follows it.
      if (pairs) __builtin_memset((bf16*)(w_.s + r * kMostKeys) + keys, 0, sizeof(bf16));
    }
    for (int i = 0; i < keys; ++i) {
      __builtin_memcpy(w_.o_before, w_.o, size * sizeof(float));
      const FetchRows nothing{u64(v[i]), 0};
      const float* const p = pairs ? (const float*)((const bf16*)w_.s + i) : w_.s + i;
      values(w_.o, v + i, &nothing, 1, p, same, heads_);
      for (int r = 0; r < rows_; ++r) {
        const Seen seen = seen_by(r, key, keys);
        if (i < seen.last && (i < seen.sink || i >= seen.first)) continue;
        __builtin_memcpy(w_.o + r * heads_.o_width, w_.o_before + r * heads_.o_width, heads_.o_width * sizeof(float));
      }
    }
  }

  // O / l, 0 for a row that sees no key;  LSE = ln(2) (m + log2 l), then -inf
  void finish(ValueOrder order) const {
    for (int r = 0; r < rows_; ++r) {
      const i64 row = u_.row + r / u_.heads, head = u_.head + r % u_.heads;
      const float l = total(load(l_[r]));
      char* out = (char*)a_.out + storage_.out_bytes * (u_.out_offset + head * a_.out_head + row * a_.out_row);
      storage_.store_row(out, w_.o + r * heads_.o_width, l == 0 ? 0.f : descales_.v / l, a_.hdim_v, order);
      if (a_.features.lse) {
        a_.lse[u_.lse_offset + head * a_.lse_head + row] = l == 0 ? -kInfinity : kLn2 * m_[r] + __builtin_logf(l);
      }
    }
  }

 private:
  // Which of the keys [key, key + keys) row r sees.
  Seen seen_by(int r, i64 key, int keys) const {
    const auto clamp = [&](i64 x) { return int(x < 0 ? 0 : x > keys ? keys : x); };
    const i64 row = u_.row + window_.shift + r / u_.heads;
    return {clamp(row - window_.left - key), clamp(row + window_.right + 1 - key), clamp(window_.sink - key)};
  }

  // A sink logit is one more key, seen first, whose V is 0. One that is no number makes l none.
  void start_with(int r, float sink) {
    if (sink == -kInfinity) return;
    if (!(__builtin_fabsf(sink) < kInfinity)) {
      l_[r][0] = kNan;
      return;
    }
    const float logit = sink * kLog2e, least = logit < kLowest ? kLowest : logit,
                t = least > -kLowest ? -kLowest : least;
    m_[r] = __builtin_ceilf(t);
    l_[r][0] = __builtin_exp2f(t - m_[r]);
  }

  // A row of Q into scratch. Rows in twos are interleaved by half registers: half a register of the first row, then half a
  // register of the second.
  void load_q(int r, const void* from) {
    if (!twos_ || heads_.heads_k > 1 || (heads_.group % 2 && r == heads_.group - 1))
      return storage_.load_q(w_.q + r * heads_.q_width, from, 0, 1, a_.hdim_q);
    constexpr int kHalf = kLanes / 2;
    alignas(64) float words[kMaxHdim];
    storage_.load_q(words, from, 0, 1, a_.hdim_q);
    float* const to = w_.q + r / 2 * 2 * heads_.q_width + r % 2 * kHalf;
    for (int i = 0; i < heads_.q_width / kHalf; ++i)
      __builtin_memcpy(to + i * kLanes, words + i * kHalf, kHalf * sizeof(float));
  }

  const RowStorage& storage_;
  const KvProblem& a_;
  const KvUnit& u_;
  const Descales& descales_;
  RowScratch& w_;
  const HeadRows heads_;
  const bool twos_;
  const RowStage stage_;
  const fmha::Window window_;
  const int rows_;
  i64 begin_, end_;
  bool hides_ = false;  // some row does not see some key of the block
  float m_[kMaxStreamRows];
  alignas(64) float l_[kMaxStreamRows][kLanes];  // of which l is the sum
  Score score_[kMaxStreamRows];
  const char* bias_[kMaxStreamRows];
};

// The fetch plan of a unit. keys: a block has so many; ahead: rows between the row in use and the row being fetched; into: the cache
// where fetched rows wait.
//   rows side by side, one key head     16 KB ahead. With one query head a key head and a long cache, blocks of 64 keys: the
//                                       fetch then lies as deep in V as the product does in K, and DRAM keeps up
//   rows side by side, every key head   8 KB ahead, at least one row
//   rows apart, one query               8 rows ahead (a page's 16 in pages): rows a power of two apart share sets of L1, whose
//                                       ways hold a dozen of them
//   rows apart, several queries         64 rows ahead, into L2: the products take longer than L1 holds a dozen rows
struct Blocks {
  int keys, ahead;
  FetchInto into = FetchInto::l1;
};

inline Blocks blocks_of(const HeadRows& heads, const KvUnit& u, i64 row_bytes, bool apart, bool paged) {
  constexpr int kFewKeys = 64;
  if (heads.heads_k > 1) {
    const i64 rows = (8 << 10) / (row_bytes * heads.heads_k);
    return {kFewKeys, rows >= 4 ? 8 : rows >= 2 || heads.group > 1 ? 2 : 1};
  }
  if (apart && u.rows > 1) return {kMostKeys, 64, FetchInto::l2};
  if (apart) return {kMostKeys, paged ? kFetchKeys : 8};  // so that a FetchRows is of one page
  const i64 rows = (16 << 10) / row_bytes;
  const bool is_long = (u.key_end - u.key_begin) * row_bytes > 256 << 10;
  return {heads.group == 1 && is_long ? kFewKeys : kMostKeys, int(rows < 16 ? 16 : rows > 64 ? 64 : rows)};
}

inline void decode_rows(const RowStorage& storage, const KvProblem& a, const KvUnit& u, RowScratch& w, bool padded) {
  const int group = a.nhead_q / a.nhead_k, head_k = u.head / group;
  const RowProducts& products = padded ? storage.padded : storage.direct;
  HeadRows heads;
  heads.heads_k = u.heads > group ? u.heads / group : 1;
  heads.group = u.rows * u.heads / heads.heads_k;
  heads.hdim_q = a.hdim_q, heads.hdim_v = a.hdim_v;
  heads.k_head = storage.kv_bytes * a.k_head, heads.v_head = storage.kv_bytes * a.v_head;
  heads.q_width = (a.hdim_q + storage.direct.k_dims - 1) / storage.direct.k_dims * kLanes;
  heads.o_width = round_up(a.hdim_v, 2 * kLanes);
  const Blocks blocks = blocks_of(heads, u, storage.kv_bytes * (a.hdim_q > a.hdim_v ? a.hdim_q : a.hdim_v),
                                  a.k_row != a.hdim_q || a.v_row != a.hdim_v, a.pages.table != nullptr);
  heads.chunk = heads.heads_k > 1 ? blocks.ahead : blocks.keys;
  heads.fetch_shift = __builtin_ctz(heads.heads_k > 1 ? blocks.ahead : kFetchKeys);
  heads.fetch_into = blocks.into;
  const bool several = heads.group > 1, pairs = several && products.pairs;

  const Descales descales = cache_descales(a, u, head_k);
  RowState state(storage, a, u, descales, w, heads, products.twos);
  const CachedRows k_rows = CachedRows::of<false>(storage, a, u, head_k, padded, w),
                   v_rows = CachedRows::of<true>(storage, a, u, head_k, padded, w);
  // Memory is read in this order: K of the block, its V, K of the next block.
  const char *order[4 * kMostKeys + kFetchKeys], *copies[kMostKeys];
  FetchRows fetch[kMostKeys];
  const auto fetched = [&](const char* const* at, int keys) {
    for (int i = 0; i < keys; i += heads.fetch_keys())
      fetch[i >> heads.fetch_shift] = {u64(at[i]), u64(at[i + 1]) - u64(at[i])};
    return fetch;
  };
  float alpha[kMaxStreamRows];
  i64 key = state.begin();
  int keys = 0;
  bool some = state.block(key, keys, blocks.keys);
  if (some) k_rows.find(order, key, keys);
  while (some) {
    i64 next = key + keys;
    int next_keys = 0;
    some = state.block(next, next_keys, blocks.keys);
    v_rows.find(order + keys, key, keys);
    if (some) k_rows.find(order + 2 * keys, next, next_keys);
    const int distance = blocks.ahead < keys ? blocks.ahead : keys;
    for (int i = 2 * keys + next_keys; i < 2 * keys + distance + kFetchKeys; ++i) order[i] = order[i - 1];
    products.scores(w.s, k_rows.usable(order, copies, key, keys), fetched(order + distance, keys), keys, w.q, heads);
    state.softmax(key, keys, pairs, alpha);
    state.add_values(several ? products.values_of_several : products.values_of_one,
                     v_rows.usable(order + keys, copies, key, keys), fetched(order + keys + distance, keys), key, keys,
                     pairs, alpha);
    __builtin_memmove(order, order + 2 * keys, next_keys * sizeof *order);
    key = next;
    keys = next_keys;
  }
  state.finish(several ? products.several : products.one);
}

inline void decode(const RowStorage& storage, const KvProblem& a, const KvUnit& u, RowScratch& w) {
  const int group = a.nhead_q / a.nhead_k;
  const bool padded = a.hdim_q % storage.direct.k_dims || a.hdim_v % storage.direct.v_dims;
  const bool vectorized = a.pages.table && a.pages.layout == KvLayout::vectorized;
  if (u.heads <= group || (!padded && !vectorized && !a.k_page_scale)) return decode_rows(storage, a, u, w, padded);
  KvUnit one = u;  // rows that are copied, and page scales, are of one key head
  one.heads = group;
  for (; one.head < u.head + u.heads; one.head += group) decode_rows(storage, a, one, w, padded);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
