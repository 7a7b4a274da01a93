// The row of the CUDA backward: the one argument of its three kernels, and what one build of them is made for.
//
// Plain data. tools/gpu reads the fields of `Row` and `Build` from this text, so a declaration is one line.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace tilekiln::cuda::fmha_bwd {

// Bits of Row::features.
enum Feature : int {
  kMask = 1,    // left, right leave keys out; without it they are far
  kPaired = 2,  // right is bounded and left is not: workers take key tiles in pairs of equal length (see order.h)
  kAlibi = 4,
};

struct alignas(128) Row {
  CUtensorMap q, k, v, dout;
  const uint16_t* out;
  const uint16_t* dout_rows;
  uint16_t* dq;
  uint16_t* dk;
  uint16_t* dv;
  const float* lse;  // [(b nhead_q + h) seqlen_q + row], as the forward wrote it
  float* lse_log2;  // [b nhead_q + h][query_tiles][query rows]: log2(e) lse; +inf where no key is seen and past the end
  float* delta;     // of the same shape: rowsum(dout out)
  float* dq_sums;   // [b nhead_q + h][query_tiles][slots][a tile in the order of wgmma's registers]
  unsigned* counters;                    // [b nhead_k + h_k][slots][nhead_q / nhead_k query_tiles]: adds that are done
  const float* alibi_slopes;             // [b alibi_batch + h]
  int64_t out_batch, out_head, out_row;  // strides in elements
  int64_t dout_batch, dout_head, dout_row;
  int64_t dq_batch, dq_head, dq_row;
  int64_t dk_batch, dk_head, dk_row;
  int64_t dv_batch, dv_head, dv_row;
  int64_t alibi_batch;
  float softmax_scale;
  float score_scale_log2;  // softmax_scale log2(e)
  float alibi_scale;       // 1 / softmax_scale
  int batch, nhead_q, nhead_k;
  int seqlen_q, seqlen_k;
  int hdim;  // columns, a multiple of 8
  int query_tiles, key_tiles;
  int left, right, shift;  // row i sees keys [i + shift - left, i + shift + right]
  int features;
  int team, passes, units, team_units, lists, slots, turn;  // the order of the adds: order.h
};

// What the host must know of a build; the cubin holds one as `fmha_bwd_build`.
struct Build {
  int hdim;        // the largest it takes, of any multiple of 8
  int query_rows;  // of a tile: rows of one tensor copy of q or dout
  int keys;        // of a tile: rows of one tensor copy of k or v
  int threads;
  int shared_bytes;
};

}  // namespace tilekiln::cuda::fmha_bwd
