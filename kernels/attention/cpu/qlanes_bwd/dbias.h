// SPDX-License-Identifier: MIT
// dbias = dS, back in rows of queries.
#pragma once

#include "kernels/attention/cpu/qlanes_bwd/scratch.h"
#include "kernels/attention/cpu/qlanes_bwd/visible.h"
#include "kernels/backends/cpu/load.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Rows and keys that exist. ds: dS^T [key][query]; null: the block is invisible and dS = 0.
using StoreDbias = void (*)(void* to, i64 stride, const float* ds, int rows, int keys);

template <class T> void store_dbias(void* to, i64 stride, const float* ds, int rows, int keys) {
  if (ds == nullptr) {
    for (int i = 0; i < rows; ++i) __builtin_memset((T*)to + i * stride, 0, keys * sizeof(T));
    return;
  }
  for (int q = 0; q < rows; q += kLanes) {
    for (int key = 0; key < keys; key += kLanes) {
      vf r[kLanes];
      for (int i = 0; i < kLanes; ++i) r[i] = load(ds + (key + i) * kTileQ + q);
      transpose(r);
      for (int i = 0; i < kLanes && q + i < rows; ++i) narrow_some((T*)to + (q + i) * stride + key, r[i], keys - key);
    }
  }
}

// dS = 0 where nothing was computed.
inline void clear_unseen(float* ds, const Visible& visible) {
  for (int j = 0; j < visible.vectors; ++j) {
    const KeyRange& r = visible.range[j];
    for (int key = 0; key < r.begin; ++key) store(ds + key * kTileQ + j * kLanes, zero());
    for (int key = r.end; key < kTileK; ++key) store(ds + key * kTileQ + j * kLanes, zero());
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
