// SPDX-License-Identifier: MIT
// Common parts of the two products with lanes along the head dim: how rows of K and V become registers, the rows of a unit.
#pragma once

#include "kernels/attention/cpu/tile.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kMaxRows = 16;        // pairs of a query and a query head in a unit of one key head
constexpr int kMaxStreamRows = 64;  // query heads in a unit of every key head
constexpr int kBlockShift = 7, kMostKeys = 1 << kBlockShift;  // a block

// The elements that kernels read T as, and what tells them T: a table of bytes, where one kernel reads e4m3 and e5m2.
using Table = const uint16_t*;
template <class T> struct ReadAs { using Type = T; };
#if TILEKILN_BYTE_TABLES
template <> struct ReadAs<bf8> { using Type = fp8; };
#else
template <class T> inline constexpr Table kByteTable = nullptr;
#endif
#if TILEKILN_PAIRS
template <class T> struct Halves {
  explicit TILEKILN_INLINE Halves(Table) {}
  TILEKILN_INLINE vh load(const T* p) const { return load_halves(p); }
};
#if TILEKILN_BYTE_TABLES
template <> struct Halves<fp8> : ByteTable {
  using ByteTable::ByteTable;
  TILEKILN_INLINE vh load(const fp8* p) const { return halves(_mm256_loadu_si256((const __m256i*)p)); }
};
#endif
#endif

// Rows of K, a register at a time, and their product with the same dims of q. kDims dims a register.
template <class T> struct Fp32Row {
  static constexpr int kDims = kLanes, kBytes = kDims * int(sizeof(T));
  explicit TILEKILN_INLINE Fp32Row(Table) {}
  TILEKILN_INLINE vf load(const char* p) const { return widen((const T*)p); }
  static TILEKILN_INLINE vf multiply_add(vf sum, vf k, vf q) { return fma(k, q, sum); }
};
#if TILEKILN_PAIRS
template <class T> struct PairRow : Halves<T> {
  using Halves<T>::Halves;
  static constexpr int kDims = 2 * kLanes, kBytes = kDims * int(sizeof(T));
  TILEKILN_INLINE vf load(const char* p) const { return words(Halves<T>::load((const T*)p)); }
  static TILEKILN_INLINE vf multiply_add(vf sum, vf k, vf q) { return dot_pair(sum, k, q); }
};
#endif

// The order of 2 kLanes dims of O until it is stored: as they are; the even ones, then the odd ones; or as interleave_lanes leaves
// them.
enum class ValueOrder : unsigned char { plain, even_odd, interleaved };

// Rows of V, two registers at a time, where P is fp32.
template <class T> struct ValueRow {
  explicit TILEKILN_INLINE ValueRow(Table) {}
  static constexpr ValueOrder kOrder = ValueOrder::plain;
  TILEKILN_INLINE void load_two(const char* p, vf& a, vf& b) const {
    a = widen((const T*)p);
    b = widen((const T*)p + kLanes);
  }
};
template <> struct ValueRow<bf16> {
  explicit TILEKILN_INLINE ValueRow(Table) {}
  static constexpr ValueOrder kOrder = ValueOrder::even_odd;
  TILEKILN_INLINE void load_two(const char* p, vf& a, vf& b) const { even_odd((const bf16*)p, a, b); }
};
#if TILEKILN_PAIRS
template <class T> struct ByteValues : Halves<T> {
  using Halves<T>::Halves;
  static constexpr ValueOrder kOrder = ValueOrder::even_odd;
  TILEKILN_INLINE void load_two(const char* p, vf& a, vf& b) const { even_odd(this->load((const T*)p).v, a, b); }
};
template <> struct ValueRow<fp8> : ByteValues<fp8> { using ByteValues::ByteValues; };
template <> struct ValueRow<bf8> : ByteValues<bf8> { using ByteValues::ByteValues; };
#endif

// Pairs of keys: several rows that share V multiply it by two keys at once, in bf16, which is half of the products.
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
  Table table;

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
constexpr int kFetchShift = 4, kFetchKeys = 1 << kFetchShift;

template <int Bytes> TILEKILN_INLINE void fetch_lines(u64 at, FetchInto into = FetchInto::l1) {
  if (into == FetchInto::l1) {
    TILEKILN_UNROLL(16) for (int i = 0; i < Bytes; i += 64) __builtin_prefetch((const char*)(at + i), 0, 3);
  } else if (into == FetchInto::l2) {
    TILEKILN_UNROLL(16) for (int i = 0; i < Bytes; i += 64) __builtin_prefetch((const char*)(at + i), 0, 2);
  }
}

// Lines of those rows in the order of use, `rows` rows at a time: line n of the first step at first + n gap, of the next step `next`
// further, and of the next rows `group` past the end of these.
struct FetchLines {
  u64 first, gap, next, group;

  // Rows are used `width` bytes at a step. Those that lie side by side are asked for in the order of memory whatever the order of use,
  // which gives their lines 1.1 (L3) to 1.3 times (DRAM) as fast.
  static TILEKILN_INLINE FetchLines of(const FetchRows& fetch, int rows, int width, i64 row_bytes) {
    if (fetch.step != u64(row_bytes))
      return {fetch.first, fetch.step, u64(width), u64(rows) * fetch.step - u64(row_bytes)};
    return {fetch.first, width < 64 ? 64u : u64(width), u64(rows * width), 0};
  }
};

// The lines asked for while part `index` of `parts` parts of each of `rows` rows is used, others being used earlier and later: the same
// part of later rows, at `offset`; or, where those lie side by side, that part of all of their bytes.
TILEKILN_INLINE FetchRows fetch_of_part(const FetchRows& fetch, int rows, int index, int parts, i64 bytes, i64 offset) {
  if (fetch.step == u64(parts * bytes)) return {fetch.first + u64(index) * rows * bytes, u64(bytes)};
  return {fetch.first + u64(offset), fetch.step};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
