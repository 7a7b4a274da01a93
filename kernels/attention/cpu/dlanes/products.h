// Common parts of the two products with lanes along the head dim: how rows of K and V become registers, the rows of a unit.
#pragma once

#include "kernels/attention/cpu/tile.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kMaxRows = 16;        // pairs of a query and a query head in a unit of one key head
constexpr int kMaxStreamRows = 64;  // query heads in a unit of every key head
constexpr int kMostKeys = 128;      // a block

// Rows of K, a register at a time, and their product with the same dims of q. kDims dims a register; twice: the dims of half a
// register, in both halves; kTwos: this is cheap, because nothing is converted, or converting is not what takes the time.
template <class T> struct Fp32Row {
  static constexpr bool kTwos = sizeof(T) == 4 || kLanes < 16;
  static constexpr int kDims = kLanes, kBytes = kDims * int(sizeof(T));
  static TILEKILN_INLINE vf load(const char* p) { return widen((const T*)p); }
  static TILEKILN_INLINE vf load_twice(const char* p) { return widen_twice((const T*)p); }
  static TILEKILN_INLINE vf multiply_add(vf sum, vf k, vf q) { return fma(k, q, sum); }
};
#if TILEKILN_PAIRS
template <class T> struct PairRow {
  static constexpr bool kTwos = sizeof(T) == 2;
  static constexpr int kDims = 2 * kLanes, kBytes = kDims * int(sizeof(T));
  static TILEKILN_INLINE vf load(const char* p) { return words(load_halves((const T*)p)); }
  static TILEKILN_INLINE vf load_twice(const char* p) { return words(load_halves_twice((const T*)p)); }
  static TILEKILN_INLINE vf multiply_add(vf sum, vf k, vf q) { return dot_pair(sum, k, q); }
};
#endif

// The order of 2 kLanes dims of O until it is stored: as they are; the even ones, then the odd ones; or as interleave_lanes leaves
// them.
enum class ValueOrder : unsigned char { plain, even_odd, interleaved };

// Rows of V, two registers at a time, where P is fp32.
template <class T> struct ValueRow {
  static constexpr ValueOrder kOrder = ValueOrder::plain;
  static TILEKILN_INLINE void load_two(const char* p, vf& a, vf& b) {
    a = widen((const T*)p);
    b = widen((const T*)p + kLanes);
  }
};
template <> struct ValueRow<bf16> {
  static constexpr ValueOrder kOrder = ValueOrder::even_odd;
  static TILEKILN_INLINE void load_two(const char* p, vf& a, vf& b) { even_odd((const bf16*)p, a, b); }
};
#if TILEKILN_PAIRS
template <> struct ValueRow<fp8> {
  static constexpr ValueOrder kOrder = ValueOrder::even_odd;
  static TILEKILN_INLINE void load_two(const char* p, vf& a, vf& b) { even_odd(load_halves((const fp8*)p).v, a, b); }
};
#endif

// Whether several rows that share V multiply it as pairs of keys, in bf16: half of the products.
#if TILEKILN_PAIRS
template <class T> constexpr bool kValuePairs = sizeof(T) < 4;
template <> inline constexpr bool kValuePairs<core::fp16> = false;
#else
template <class T> constexpr bool kValuePairs = false;
#endif

// The cache that prefetched rows wait in until they are used.
enum class FetchInto : unsigned char { l1, l2, nothing };

// The rows of a unit: `group` of each key head. Row r reads key head r / group.
struct HeadRows {
  int group, heads_k;
  int hdim_q, hdim_v;
  i64 k_head, v_head;    // bytes
  i64 q_width, o_width;  // floats of a row in scratch
  int chunk;             // keys that O is loaded for
  int fetch_shift;       // log2 of the keys of one FetchRows; of several rows of a key head not 0
  FetchInto fetch_into;  // looked at where one key head has several rows
  bool by_head;          // of several key heads: each by itself over a block, else all of them key by key

  TILEKILN_INLINE int fetch_keys() const { return 1 << fetch_shift; }
};

// Later rows, a step apart, that are fetched while as many are used, a line for each line: a stream that is asked for
// as evenly as it is used comes almost as fast as a loop that only reads gets it. Computed, not one address a row: measured,
// with a load for each of them DRAM gives 42 in place of 50 GB/s.
// An address past the rows is asked for in vain, and may wrap: so they are numbers.
struct FetchRows {
  u64 first, step;

  TILEKILN_INLINE FetchRows from(i64 row) const { return {first + u64(row) * step, step}; }
};
constexpr int kFetchKeys = 16;

// Calls f(first row of the head, its rows, their FetchRows, the unit as if it had that head alone) for every key head. `fetch`: by
// head, then by kFetchKeys keys.
template <class F>
TILEKILN_INLINE void each_head(const char* const* rows, const FetchRows* fetch, int keys, i64 head, const HeadRows& a,
                               F&& f) {
  HeadRows one = a;
  one.heads_k = 1, one.by_head = false;
  const char* at[kMostKeys];
  for (int h = 0; h < a.heads_k; ++h, fetch += (keys + kFetchKeys - 1) / kFetchKeys) {
    for (int i = 0; i < keys; ++i) at[i] = rows[i] + h * head;
    f(h * a.group, at, fetch, one);
  }
}

template <int Bytes> TILEKILN_INLINE void fetch_lines(u64 at, FetchInto into = FetchInto::l1) {
  if (into == FetchInto::l1) {
    TILEKILN_UNROLL(16) for (int i = 0; i < Bytes; i += 64) __builtin_prefetch((const char*)(at + i), 0, 3);
  } else if (into == FetchInto::l2) {
    TILEKILN_UNROLL(16) for (int i = 0; i < Bytes; i += 64) __builtin_prefetch((const char*)(at + i), 0, 2);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
