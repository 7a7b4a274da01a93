// The row of the CUDA backward: the one argument of its three kernels, and what one build of them is made for.
//
// Plain data. tools/gpu reads the fields of `Row` and `Build` from this text, so a declaration is one line.
#pragma once

#include <cstdint>

#include "kernels/backends/cuda/tensor_map.h"

namespace tilekiln::cuda::fmha_bwd {

// Bits of Row::features.
enum Feature : int {
  kMask = 1,    // left, right leave keys out; without it they are far
  kPaired = 2,  // right is bounded and left is not: workers take key tiles in pairs of equal length (see order.h)
  kAlibi = 4,
  kGroup = 8,  // packed sequences: seqstart_q, seqstart_k, and seqlens_q, seqlens_k where they are padded
  kSoftcap = 16,
  kBias = 32,
  kDropout = 64,
  kBottomRight = 128,  // what shift is in a packed sequence
};

// Coordinates of the tensor maps: as of the forward (kernels/attention/fmha_fwd/cuda/row.h).
constexpr int kFar = 1 << 30;

struct alignas(128) Row {
  TensorMap q, k, v, dout;
  const uint16_t* out;
  const uint16_t* dout_rows;
  uint16_t* dq;
  uint16_t* dk;
  uint16_t* dv;
  uint16_t* dbias;   // or null; [b dbias_batch + h dbias_head + row dbias_row + key], of the full shape
  float* d_sink;     // or null; [nhead_q]
  const float* lse;  // [b lse_batch + h lse_head + row], as the forward wrote it
  float* lse_log2;  // [b nhead_q + h][query_tiles][query rows]: log2(e) lse; +inf where no key is seen and past the end
  float* delta;     // of the same shape: rowsum(dout out)
  float* dq_sums;   // [b nhead_q + h][query_tiles][slots][a tile in the order of wgmma's registers]
  unsigned* counters;         // [b nhead_k + h_k][slots][nhead_q / nhead_k query_tiles]: adds that are done
  float* sink_sums;           // with d_sink; [b nhead_q + h][query_tiles]
  const float* alibi_slopes;  // [b alibi_batch + h]
  const float* sink;          // (nhead_q) logits, with d_sink
  const uint16_t* bias;       // of the dtype of q; [b bias_batch + h bias_head + row bias_row + key]
  const int* seqstart_q;      // (batch + 1), rows
  const int* seqstart_k;
  const int* seqlens_q;  // (batch), or null: seqstart's differences
  const int* seqlens_k;
  int64_t out_batch, out_head, out_row;  // strides in elements
  int64_t dout_batch, dout_head, dout_row;
  int64_t dq_batch, dq_head, dq_row;
  int64_t dk_batch, dk_head, dk_row;
  int64_t dv_batch, dv_head, dv_row;
  int64_t lse_batch, lse_head;
  int64_t alibi_batch;
  int64_t bias_batch, bias_head, bias_row;
  int64_t dbias_batch, dbias_head, dbias_row;
  uint64_t dropout_seed, dropout_offset;
  uint32_t dropout_over;  // 0x10001 (255 - threshold)
  float keep_scale;       // 1 / (1 - p); 1 without dropout
  float softmax_scale;
  // Weights are 2^(score_scale_log2 s - lse_log2). Without a soft cap s = q k^T and score_scale_log2 = softmax_scale log2(e); with
  // one s = softcap tanh(softcap_inner q k^T), softcap_inner = softmax_scale / softcap, and score_scale_log2 = log2(e).
  float score_scale_log2;
  float softcap, softcap_inner;
  float bias_scale;  // log2(e) / score_scale_log2, for bias and alibi
  int batch, nhead_q, nhead_k;
  int seqlen_q, seqlen_k;      // packed: of the longest
  int hdim;                    // columns, a multiple of 8
  int query_tiles, key_tiles;  // of a sequence of these lengths
  int left, right, shift;      // row i sees keys [i + shift - left, i + shift + right]
  int sink_size;               // and keys below it
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
