// SPDX-License-Identifier: MIT
// The part of a 64 x 64 block that is computed: keys in groups of 4, queries in vectors.
#pragma once

#include "kernels/attention/cpu/qlanes/partial_block.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kGroup = 4;

// Some lane of the vector sees the keys [begin, end), whole groups; all its lanes see [all_begin, all_end), which needs no mask.
struct KeyRange { int begin, end, all_begin, all_end; };

struct Visible {
  Edges edges;
  int vectors;
  KeyRange
      range[kVectors];  // of each vector; begin and end grow with the vector, so a group of keys sees a run of vectors

  // Every vector sees some key.
  bool all_vectors() const {
    for (int j = 0; j < vectors; ++j) {
      if (range[j].begin >= range[j].end) return false;
    }
    return true;
  }

  // Calls f(key, key_end, j, j_end) for the runs of key groups that are seen by the same vectors [j, j_end).
  template <class F> TILEKILN_INLINE void key_runs(F&& f) const {
    int key = 0, j = 0, j_end = 0;
    for (int next = 0; next <= kTileK; next += kGroup) {
      int first = 0, last = next < kTileK ? vectors : 0;
      while (first < last && next >= range[first].end) ++first;
      while (first < last && next < range[last - 1].begin) --last;
      if (first == j && last == j_end) continue;
      if (j < j_end) f(key, next, j, j_end);
      key = next, j = first, j_end = last;
      if (first >= last) j = j_end = 0;
    }
  }

  // Calls f(j, j_end, range) for the runs of vectors that see the same keys.
  template <class F> TILEKILN_INLINE void vector_runs(F&& f) const {
    for (int j = 0, next = 1; j < vectors; j = next++) {
      while (next < vectors && range[next].begin == range[j].begin && range[next].end == range[j].end) ++next;
      if (range[j].begin < range[j].end) f(j, next, range[j]);
    }
  }
};

inline Visible visible_of(const Edges& edges, int vectors) {
  Visible v{edges, vectors, {}};
  for (int j = 0; j < vectors; ++j) {
    KeyRange& r = v.range[j];
    const i64 q = j * kLanes;
    r.begin = edges.sink > 0 ? 0 : edges.clamp(q + edges.first) / kGroup * kGroup;
    r.end = round_up(edges.clamp(q + kLanes + edges.last), kGroup);
    if (r.end < r.begin) r.end = r.begin;
    r.all_begin = round_up(edges.clamp(q + kLanes - 1 + edges.first), kGroup);
    r.all_end = edges.clamp(q + edges.last + 1) / kGroup * kGroup;
    if (edges.sink >= edges.keys)
      r.all_begin = 0;
    else if (edges.sink > 0)
      r.all_end = r.all_begin;
    if (r.all_begin > r.end) r.all_begin = r.end;
    if (r.all_end < r.all_begin) r.all_end = r.all_begin;
  }
  return v;
}

// Some row of the tile sees some key of the block.
TILEKILN_INLINE bool any_visible(const Edges& edges, int rows) {
  return edges.last + rows - 1 >= 0 && (edges.first < edges.keys || edges.sink > 0);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
