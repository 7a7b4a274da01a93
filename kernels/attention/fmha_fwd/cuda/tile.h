// SPDX-License-Identifier: MIT
// The tiles of the forward: the order in which query blocks are dealt out, and the keys that a block sees.
#pragma once

#include "kernels/attention/cuda/places.h"
#include "kernels/attention/fmha_fwd/cuda/params.h"
#include "kernels/attention/key_range.h"
#include "kernels/backends/cuda/ptx.h"
#ifdef TILEKILN_CODES
#include "kernels/attention/fmha_fwd/features.h"
#endif

namespace tilekiln::cuda::fmha_fwd {

using fmha::KeyMask;
using fmha::KeyRange;

// The features that a launch asks for. A kernel of fixed features (TILEKILN_CODES: its signature, packed) knows what a
// signature says.
#ifdef TILEKILN_CODES
constexpr fmha::FwdFeatures kKnown = fmha::features_of(tilekiln::fmha_fwd::unpack(TILEKILN_CODES));
TILEKILN_DEVICE int features_of(const Params& p) {
  constexpr int bits = (kKnown.mask ? kMask : 0) | (kKnown.softcap ? kSoftcap : 0) | (kKnown.dropout ? kDropout : 0) |
                       (kKnown.bias == fmha::Bias::alibi ? kAlibi : 0) |
                       (kKnown.bias == fmha::Bias::elementwise ? kBias : 0);
  return (p.features & ~(kMask | kSoftcap | kDropout | kAlibi | kBias)) | bits;
}
TILEKILN_DEVICE float* lse_of(const Params& p) { return kKnown.lse ? p.lse : nullptr; }
TILEKILN_DEVICE const float* sink_of(const Params& p) { return kKnown.sink ? p.sink : nullptr; }
#else
TILEKILN_DEVICE int features_of(const Params& p) { return p.features; }
TILEKILN_DEVICE float* lse_of(const Params& p) { return p.lse; }
TILEKILN_DEVICE const float* sink_of(const Params& p) { return p.sink; }
#endif

TILEKILN_DEVICE KeyMask mask_of(const Params& p, int shift) { return {shift, p.left, p.right, p.sink_keys}; }

// One query block of one head, worked out by the loader and handed to the warpgroups in shared memory.
struct alignas(16) Tile {
  int row;  // its first query row; -1: no more tiles
  int seqlen_q, seqlen_k;
  int shift;  // the key under row 0 of the diagonal
  int b, h;
  int start_q;     // the sequence's first row in packed tensors, 0 in batch mode
  KeyRange range;  // of key tiles
};

template <int kQueryRows, int kKeys> struct Tiles {
  // The host has not seen these numbers, but knows the most.
  static __device__ int length(const int* seqlen, const int* cu_seqlens, int b, int most) {
    const int said = seqlen ? seqlen[b] : cu_seqlens ? cu_seqlens[b + 1] - cu_seqlens[b] : most;
    return max(min(said, most), 0);
  }

  // Fills `tile` for position t of the order; false: the sequence has no such rows. keys.first: as start_q; of a cache,
  // all of it. Heads go in groups whose keys and values fit into L2; inside a group all heads of a block, then the next
  // block.
  static __device__ bool decode(const Params& p, int t, Tile& tile, Keys& keys) {
    const int heads = p.batch * p.nhead_q, group_tiles = p.head_group * p.query_blocks, group = t / group_tiles;
    const int in_group = min(p.head_group, heads - group * p.head_group), at = t - group * group_tiles;
    const int block = at / in_group, head = group * p.head_group + (at - block * in_group);
    tile.b = head / p.nhead_q;
    tile.h = head - tile.b * p.nhead_q;
    tile.row = (features_of(p) & kHeavyFirst ? p.query_blocks - 1 - block : block) * kQueryRows;
    tile.seqlen_q = p.seqlen_q_most;
    tile.seqlen_k = p.seqlen_k_most;
    tile.start_q = keys.first = 0;
    if (features_of(p) & kGroup) {
      tile.start_q = p.seqstart_q ? clamp(p.seqstart_q[tile.b], 0, p.total_q) : tile.b * p.rows_q;
      keys.first = p.seqstart_k ? clamp(p.seqstart_k[tile.b], 0, p.total_k) : tile.b * p.rows_k;
      tile.seqlen_q = length(p.seqlen_q, p.cu_seqlens_q, tile.b, p.seqlen_q_most);
      if (p.seqstart_q) tile.seqlen_q = min(tile.seqlen_q, p.total_q - tile.start_q);
      if (features_of(p) & kCache) {
        keys = find_keys(p, tile.b);
        tile.seqlen_k = keys.count;
        if (p.seqstart_q) {
          const Queries queries = find_queries(p, tile.b);
          tile.start_q = queries.start, tile.seqlen_q = queries.count;
        }
      } else {
        tile.seqlen_k = length(p.seqlen_k, p.cu_seqlens_k, tile.b, p.seqlen_k_most);
        if (p.seqstart_k) tile.seqlen_k = min(tile.seqlen_k, p.total_k - keys.first);
      }
      if (tile.seqlen_q <= p.min_seqlen_q) return false;
    }
    if (tile.row >= tile.seqlen_q) return false;
    tile.shift = features_of(p) & kBottomRight ? tile.seqlen_k - tile.seqlen_q : 0;
    tile.range = {0, KeyRange::tiles<kKeys>(tile.seqlen_k), 0};
    if (features_of(p) & kMask)
      tile.range = KeyRange::of<kKeys>(mask_of(p, tile.shift), tile.row, min(kQueryRows, tile.seqlen_q - tile.row),
                                       tile.seqlen_k);
    return true;
  }
};

}  // namespace tilekiln::cuda::fmha_fwd
