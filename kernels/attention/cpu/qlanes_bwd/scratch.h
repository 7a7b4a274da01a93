// SPDX-License-Identifier: MIT
// The memory in which one thread differentiates one chunk of keys.
#pragma once

#include "kernels/attention/bwd_engine.h"
#include "kernels/attention/cpu/tile.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kChunk = 256;  // the most keys a unit
static_assert(kChunk % (fmha::unit_parts * kTileK) == 0, "A part of a chunk is made of whole blocks.");

// An LSE below it, -inf included, is that of a row without a key, or of one whose every score is the lowest number, as a mask of
// finfo.min makes it: fp32 has no P for those, so they take no part in any gradient.
constexpr float kLeastLse = kLowest / kLog2e;

struct BwdScratch {
  // Chunk of keys: K and V rows in words along the head dim, K in words along the keys, and the sums of dK and dV.
  alignas(64) float k[kChunk * kMaxHdim];
  alignas(64) float v[kChunk * kMaxHdim];
  alignas(64) float k_keys[kChunk / 2 * kMaxHdim];  // only where a word holds two
  alignas(64) float dk[kChunk * kMaxHdim];
  alignas(64) float dv[kChunk * kMaxHdim];
  // Tile of queries: Q^T and dO^T in words along the head dim, Q and dO in words along the queries, dQ.
  alignas(64) float q_t[kMaxHdim * kTileQ];
  alignas(64) float dout_t[kMaxHdim * kTileQ];
  alignas(64) float q[kTileQ * kMaxHdim];
  alignas(64) float dout[kTileQ * kMaxHdim];
  alignas(64) float dq[kTileQ * kMaxHdim];
  alignas(64) char rows[kTileQ * kMaxHdim * 4];  // Q, then dO, side by side, where they lie apart
  alignas(
      64) float lse[kTileQ];  // in log2 units; +inf where P = 0: rows with an LSE below kLeastLse, lanes without a row
  alignas(64) float delta[kTileQ];
  // Block: S^T then P^T, dP^T then dS^T [key][query] in fp32; where a word holds two, P and dS in words along the
  // queries [key][query / 2], and dS in words along the keys [key / 2][query].
  alignas(64) float s[kTileK * kTileQ];
  alignas(64) float dp[kTileK * kTileQ];
  alignas(64) float p_queries[kTileK * kTileQ / 2];
  alignas(64) float ds_queries[kTileK * kTileQ / 2];
  alignas(64) float ds_keys[kTileK / 2 * kTileQ];
  alignas(64) lane_bits keep[kVectors * kTileK];  // dropout: [vector][key]
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
