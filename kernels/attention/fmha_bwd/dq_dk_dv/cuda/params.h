// SPDX-License-Identifier: MIT
// Parameters of the CUDA backward: the one argument of its three kernels, and what one build of them is made for.
//
// Plain data. tools/gpu reads the fields of `Params` and `Build` from this text, so a declaration is one line.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/coordinates.h"
#include "kernels/backends/cuda/tensor_map.h"

namespace tilekiln::cuda::fmha_bwd {

// Bits of Params::features.
enum Feature : int {
  kMask = 1,    // left, right leave keys out; without it they are far
  kPaired = 2,  // right is bounded and left is not: workers take key tiles in pairs of equal length (see order.h)
  kAlibi = 4,
  kGroup = 8,  // sequences with starts or lengths of their own
  kSoftcap = 16,
  kBias = 32,
  kDropout = 64,
  kBottomRight = 128,  // what shift is in a packed sequence
  kBiasPieces = 512,   // with kBias: its rows are whole pieces of 16 bytes, and the kernel copies them so
  kApart = 256,        // with kPaired: the second tiles of pairs add into partials of their own
};

struct alignas(128) Params {
  TensorMap q, k, v, dout;
  const uint16_t* out;
  const uint16_t* dout_rows;
  uint16_t* dq;
  uint16_t* dk;
  uint16_t* dv;
  uint16_t* dbias;   // or null; [b dbias_batch + h dbias_head + row dbias_row + key], of the full shape
  uint8_t* randval;  // or null; [b randval_batch + h randval_head + row randval_row + key]
  float* d_sink;     // or null; [nhead_q]
  const float* lse;  // [b lse_batch + h lse_head + row], as the forward wrote it
  float* delta_out;  // or null: rowsum(dout out) for the caller, where lse has its rows
  // Arrays by query tile, tile_of (order.h):
  float* lse_log2;     // [tile][query rows]: log2(e) lse; +inf where no key is seen and past the end
  float* delta;        // [tile][query rows]: rowsum(dout out)
  float* dq_sums;      // [tile][partials][a tile in the order of wgmma's registers]
  unsigned* counters;  // [tile][partials]: adds that are done
  float* sink_sums;    // [tile], with d_sink
  // Sums with key_shares > 1, of fp32, not scaled: [b shares + share][key, in whole tiles][column of the build's head
  // dim]
  float* dk_sums;
  float* dv_sums;
  const float* alibi_slopes;  // [b alibi_batch + h]
  const float* sink;          // (nhead_q) logits, with d_sink
  const uint16_t* bias;       // of the dtype of q; [b bias_batch + h bias_head + row bias_row + key]
  const int* seqstart_q;      // (batch + 1), first rows; or null: b rows_q
  const int* seqstart_k;
  const int* seqlen_q;  // (batch), or null
  const int* seqlen_k;
  const int* cu_seqlens_q;  // (batch + 1), whose differences are lengths without seqlen; or null: seqlen_q_most
  const int* cu_seqlens_k;
  int64_t out_batch, out_head, out_row;  // strides in elements
  int64_t dout_batch, dout_head, dout_row;
  int64_t dq_batch, dq_head, dq_row;
  int64_t dk_batch, dk_head, dk_row;
  int64_t dv_batch, dv_head, dv_row;
  int64_t lse_batch, lse_head;
  int64_t alibi_batch;
  int64_t bias_batch, bias_head, bias_row;
  int64_t dbias_batch, dbias_head, dbias_row;
  int64_t randval_batch, randval_head, randval_row;
  uint64_t dropout_seed, dropout_offset;
  uint32_t dropout_over;  // 0x10001 (255 - threshold)
  float keep_scale;       // 1 / (1 - p); 1 without dropout
  float softmax_scale;
  // Weights are 2^(score_scale_log2 s - lse_log2). Without a soft cap s = q k^T and score_scale_log2 = softmax_scale
  // log2(e); with one s = softcap tanh(softcap_inner q k^T), softcap_inner = softmax_scale / softcap, and
  // score_scale_log2 = log2(e).
  float score_scale_log2;
  float softcap, softcap_inner;
  float bias_scale;  // log2(e) / score_scale_log2, for bias and alibi
  int batch, nhead_q;
  int shares, key_shares;  // query heads that are walked together: shares of all, key_shares of a key head
  int seqlen_q_most, seqlen_k_most;
  int hdim_q, hdim_v;          // columns, multiples of 8
  int query_tiles, key_tiles;  // of a sequence of these lengths
  int head_tiles;              // from a query head's tiles to the next's: of a sequence, or with kGroup of all, at most
  int rows_q, rows_k;          // kGroup: from one sequence to the next, where none has a start
  int left, right, shift;      // row i sees keys [i + shift - left, i + shift + right]
  int sink_keys;               // and keys below it
  int features;
  int team, passes, units, team_units, lists, partials, turn;  // the order of the adds: order.h
};

// Constants of a build that the host must know; the cubin holds one as `fmha_bwd_build`.
struct Build {
  int hdim;  // the largest of q that it takes, and of v: any multiples of 8
  int hdim_v;
  int query_rows;  // of a tile: rows of one tensor copy of q or dout
  int keys;        // of a tile: rows of one tensor copy of k or v
  int threads;
  int shared_bytes;
  int fp16;  // else bf16
};

}  // namespace tilekiln::cuda::fmha_bwd
