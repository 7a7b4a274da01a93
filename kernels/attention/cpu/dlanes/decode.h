// SPDX-License-Identifier: MIT
// Attention of few queries with lanes along the head dim: the pairs of a query and a query head that read one key head, up to
// 16, against the keys they see; or one query of every query head, where the key heads of a key lie side by side, so that memory
// is read in one stream. K and V are used where they lie, in pages or not: the products take an address per key.
//
//   S[row][key] = K[key] . Q[row]     P = 2^(S - m)     O[row][:] = alpha O[row][:] + P[row] V
//
// m is the maximum so far rounded up to an integer: so the bits of P, which may be rounded to bf16, do not depend on the keys
// that came before, and the results of splits add up to those of the whole.
#pragma once

#include "kernels/attention/cpu/dlanes/fetch_plan.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

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
                                  a.k_row != a.hdim_q || a.v_row != a.hdim_v, a.pages.table != nullptr,
                                  products.pairs || storage.kv_bytes == 4);
  const bool by_key = heads.heads_k > 1;
  heads.chunk = by_key ? blocks.ahead : blocks.keys;
  heads.fetch_shift = by_key ? __builtin_ctz(blocks.ahead) : blocks.in_a_row ? kBlockShift : kFetchShift;
  heads.fetch_into = blocks.into;
  heads.table = storage.table;
  const bool several = heads.group > 1, pairs = several && products.pairs;

  const Descales descales = cache_descales(a, u, head_k);
  RowState state(storage, a, u, descales, w, heads);
  const CachedRows k_rows = CachedRows::of<false>(storage, a, u, head_k, padded, w),
                   v_rows = CachedRows::of<true>(storage, a, u, head_k, padded, w);
  // Memory is read in this order: K of the block, its V, K of the next block.
  const char *order[4 * kMostKeys + kFetchKeys], *copies[kMostKeys];
  FetchRows fetch[kMostKeys];
  // Rows at[0, keys) while as many are used.
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
