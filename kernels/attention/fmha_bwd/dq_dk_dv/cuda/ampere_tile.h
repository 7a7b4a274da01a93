// SPDX-License-Identifier: MIT
// The tile of the backward by mma.sync: its shared memory, the copies that fill it, and the products of a warp.
#pragma once

#include "kernels/attention/cuda/copy_rows.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/ampere_params.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/passes.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/scores.h"
#include "kernels/backends/cuda/tile/element.h"

namespace tilekiln::cuda::fmha_bwd {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
// Warps that share 16 keys: each has a part of the query rows, in the scores, and of the columns, in the sums of dk and
// dv.
constexpr int kParts = kWarps * 16 / kKeys;
constexpr int kColumns = kHdim / kParts;
constexpr int kSums = kColumns / 2;  // of a thread, of dk and of dv
TILEKILN_DEVICE int key_of(int warp) { return 16 * (kParts == 1 ? warp : warp & (kKeys / 16 - 1)); }
TILEKILN_DEVICE int part_of(int warp) { return kParts == 1 ? 0 : warp / (kKeys / 16); }
// The thread that says that a turn has ended; thread 0 awaits the next one. Apart they cost d128 4 % less on an H100,
// and d64 the same.
constexpr int kCloser = kHdim == 64 ? 0 : kThreads - 32;
static_assert(kBlocks == 2, "a warp has a quarter of a block of dq");

// Columns of a row of dS^T: those of P^T lie behind them where warps share keys.
constexpr int kDsColumns = kParts * kQueryRows;

struct Shared {
  uint16_t k[kKeys * kHdim];
  uint16_t q[2][kQueryRows * kHdim];  // v passes through them on its way to registers
  uint16_t dout[kQueryRows * kHdim];
  uint16_t ds[kKeys * kDsColumns];
  float4 partial[kParts == 1
                     ? 1
                     : 2 * kThreads];  // of dP^T of a warp's columns, for the query rows of the other of its keys
  alignas(16) float lse[kQueryRows], delta[kQueryRows];
  int before[kWarps];  // adds that go before that of a step, of eight steps
};
static_assert(sizeof(Shared) <= 101376, "a block of sm_86 and sm_89 has 99 KB of shared memory");
static_assert(sizeof(Shared::q) >= sizeof(uint16_t) * kKeys * kHdim, "v passes through q");

using Walk = Order<kQueryRows, kKeys, true>;

// The addresses of a turn's rows.
struct Sequence {
  const uint16_t* q;  // of the first query head of the group
  const uint16_t* dout;
  int64_t first_tile;  // its number, of the first query head
};

TILEKILN_DEVICE void load_queries(const AmpereParams& a, const Turn& t, const Sequence& of, uint32_t to, int g, int m) {
  load_rows<kHdim, kQueryRows, kThreads>(to, of.q + g * a.q_head + int64_t(m) * kQueryRows * a.q_row, a.q_row,
                                         a.common.hdim_q, {0, t.of.seqlen_q - m * kQueryRows, 0});
  copy_async_commit();
}

TILEKILN_DEVICE void load_gradients(const AmpereParams& a, Shared& s, const Walk& order, const Turn& t,
                                    const Sequence& of, int g, int m) {
  const Params& p = a.common;
  load_rows<kHdim, kQueryRows, kThreads>(shared_address(s.dout),
                                         of.dout + g * p.dout_head + int64_t(m) * kQueryRows * p.dout_row, p.dout_row,
                                         p.hdim_v, {0, t.of.seqlen_q - m * kQueryRows, 0});
  constexpr int kPieces = kQueryRows / 4;  // of 16 bytes
  const int64_t rows = (of.first_tile + g * order.head_tiles() + m) * kQueryRows;
  if (threadIdx.x < 2 * kPieces) {
    const int piece = threadIdx.x % kPieces * 4;
    const bool first = threadIdx.x < kPieces;
    copy_async(shared_address(first ? s.lse : s.delta) + piece * 4, (first ? p.lse_log2 : p.delta) + rows + piece,
               true);
  }
  copy_async_commit();
}

// Ranks of the eight steps from `c` on, a warp each.
TILEKILN_DEVICE void count_before(Shared& s, const Walk& order, const Turn& t, int c, int g, int m) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int i = 0; i < warp; ++i) order.next_step(t, g, m);
  const int rank = c + warp < t.length ? order.rank(t, g, m, lane) : 0;
  if (lane == 0) s.before[warp] = rank;
}

// score (16 keys, kRows query rows) += keys rows^T of kColumns columns; keys_of(i) are columns 16 i .. of the keys,
// `rows` an array of rows from `first` on, of which the columns begin at piece `piece`.
template <int kRows, int kColumns, class Keys>
TILEKILN_DEVICE void multiply_rows(float (&score)[kRows / 2], uint32_t rows, int first, int piece, int lane,
                                   const Keys& keys_of) {
#pragma unroll
  for (int i = 0; i < kColumns / 16; ++i) {
    uint32_t keys[4];
    keys_of(i, keys);
#pragma unroll
    for (int j = 0; j < kRows / 16; ++j) {
      uint32_t word[4];
      load_matrices(
          word, rows + place<kHdim>(first + 16 * j + (lane & 7) + (lane >> 4 << 3), piece + 2 * i + (lane >> 3 & 1)));
      multiply_add(block(score, 2 * j), keys, word[0], word[1]);
      multiply_add(block(score, 2 * j + 1), keys, word[2], word[3]);
    }
  }
}

// sums (16 rows, columns from piece `piece` on) += word rows; the rows are 16 of an array, from `first` on.
template <int kSize>
TILEKILN_DEVICE void add_product(float (&sums)[kSize], const uint32_t (&word)[4], uint32_t rows, int first, int piece,
                                 int lane) {
#pragma unroll
  for (int d = 0; d < kSize / 8; ++d) {
    uint32_t columns[4];
    load_matrices_transposed(columns, rows + place<kHdim>(first + (lane & 15), piece + 2 * d + (lane >> 4)));
    multiply_add(block(sums, 2 * d), word, columns[0], columns[1]);
    multiply_add(block(sums, 2 * d + 1), word, columns[2], columns[3]);
  }
}

// dS^T (or with kWeights P^T) of 16 keys and the query rows 16 at .., to shared memory.
template <bool kWeights>
TILEKILN_DEVICE void store_words(Shared& s, const uint32_t (&word)[4], int own_key, int at, int lane) {
  constexpr int kFirst = kWeights ? kQueryRows / 8 : 0;
#pragma unroll
  for (int u = 0; u < 4; ++u)
    *reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(s.ds) +
                                 place<kDsColumns>(own_key + (lane >> 2) + 8 * (u & 1), kFirst + 2 * at + (u >> 1)) +
                                 (lane & 3) * 4) = word[u];
}

// A step's sum of dq, of which a warp has 16 rows and 64 columns.
struct DqSum {
  float4* at;
  float sum[32];

  __device__ __forceinline__ DqSum(const Params& p, int64_t tile_partial, bool begun)
      : at(reinterpret_cast<float4*>(p.dq_sums + tile_partial * (kTileBytes / 4) + (threadIdx.x >> 7) * 64 * 64) +
           (threadIdx.x & 127)),
        sum{} {
    if (!begun) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 part = at[i * 128];
      sum[4 * i] = part.x, sum[4 * i + 1] = part.y, sum[4 * i + 2] = part.z, sum[4 * i + 3] = part.w;
    }
  }

  // += dS k of the tile.
  __device__ __forceinline__ void add(uint32_t ds, uint32_t k, int lane) {
    constexpr unsigned kRowBlocks = kQueryRows / 16;
    const unsigned warp = threadIdx.x >> 5;
    const int rows = kRowBlocks == kWarps ? warp : warp % kRowBlocks;
    const int piece = kRowBlocks == kWarps ? 0 : warp / kRowBlocks * 8;
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      uint32_t word[4];
      load_matrices_transposed(
          word, ds + place<kDsColumns>(16 * i + (lane & 7) + (lane >> 4 << 3), 2 * rows + (lane >> 3 & 1)));
      add_product(sum, word, k, 16 * i, piece, lane);
    }
  }

  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int i = 0; i < 8; ++i) at[i * 128] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
  }
};

}  // namespace tilekiln::cuda::fmha_bwd
