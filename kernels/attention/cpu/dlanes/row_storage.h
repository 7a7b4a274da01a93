// SPDX-License-Identifier: MIT
// Storage and loads of rows of K and V by dtype, for a unit of decode, and its scratch.
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
  bool pairs;                               // of several rows: P is bf16
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
  Table table;
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

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
