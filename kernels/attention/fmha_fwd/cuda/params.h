// SPDX-License-Identifier: MIT
// The parameters of the CUDA forward: the one argument of the kernel, and what one build of it is made for.
//
// Plain data. tools/gpu reads the fields of `Params` and `Build` from this text, so a declaration is one line.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/coordinates.h"
#include "kernels/backends/cuda/tensor_map.h"

namespace tilekiln::cuda::fmha_fwd {

// Bits of Params::features. Each is uniform over a launch; soft cap, alibi, bias and dropout have loops of their own.
enum Feature : int {
  kMask = 1,   // left, right, sink_keys
  kGroup = 2,  // sequences with starts and lengths of their own, as the six arrays say
  kSoftcap = 4,
  kAlibi = 8,
  kBias = 16,
  kDropout = 32,
  kBottomRight = 64,
  kHeavyFirst = 128,   // query blocks from the last one, which sees the most keys under a causal mask
  kCache = 256,        // with kGroup: keys lie in a cache, as the fields from `first_key` on say
  kBiasPieces = 1024,  // with kBias: its rows are whole pieces of 16 bytes, and nothing is dropped
  kBlockScales = 512,  // of e4m3: a scale for 128 queries or keys of a head; without it one for all
};

constexpr int kMostKeyTiles = 0x7fff;  // of a sequence, under a mask function

struct alignas(128) Params {
  TensorMap q, k, v;
  void* out;
  float* lse;             // or null; [b lse_batch + h lse_head + row]
  unsigned* next_tile;    // zero before the first launch; every launch leaves zero behind
  const int* seqstart_q;  // (batch), first rows; or null: b rows_q
  const int* seqstart_k;
  const int* seqlen_q;  // (batch), or null
  const int* seqlen_k;
  const int* cu_seqlens_q;  // (batch + 1), whose differences are lengths without seqlen; or null: seqlen_q_most
  const int* cu_seqlens_k;
  const float* alibi_slopes;             // [b alibi_batch + h]
  const float* sink;                     // (nhead_q) logits, or null
  const uint16_t* bias;                  // of the dtype of q; [b bias_batch + h bias_head + row bias_row + key]
  int64_t out_batch, out_head, out_row;  // strides in elements
  int64_t lse_batch, lse_head;
  int64_t alibi_batch;
  int64_t bias_batch, bias_head, bias_row;
  uint64_t dropout_seed, dropout_offset;
  uint32_t dropout_over;  // 0x10001 (255 - threshold)
  float keep_scale;       // 1 / (1 - p)
  // Weights are 2^(score_scale_log2 s). Without a soft cap s = q k^T and score_scale_log2 = softmax_scale log2(e) > 0;
  // with one s = tanh(softcap_inner q k^T), softcap_inner = softmax_scale / softcap, and score_scale_log2 = softcap
  // log2(e).
  float score_scale_log2;
  float softcap_inner;
  // Integer that all rows take, with a soft cap alone, for score_scale_log2 times their maximum; 0: it is found.
  float capped_top;
  float bias_scale;  // log2(e) / score_scale_log2, for bias and alibi
  int batch, nhead_q, nhead_k;
  int seqlen_q_most, seqlen_k_most;
  int hdim_v;            // columns of out, a multiple of 8
  int query_blocks;      // of a sequence of seqlen_q_most
  int tiles;             // query_blocks nhead_q batch
  int head_group;        // heads whose tiles are dealt out together, so that their keys and values stay in L2
  int left, right;       // row i sees keys [i + shift - left, i + shift + right]
  int sink_keys;         // and keys below it
  int rows_q, rows_k;    // from one sequence to the next, where none has a start
  int total_q, total_k;  // rows of packed arrays: starts that the host has not seen are kept within
  int min_seqlen_q;      // sequences with at most so many rows are left to another call
  int features;
  // Fields of a cache: those of kernels/attention/places.h. A page is `k_page` rows of k from the one before it; the
  // map of k has boxes of `box` rows, which lie in one page each.
  const int* first_key;
  const int* row_k;
  const int* table;
  const int* table_at;
  const int* table_start;
  const int* last_page_len;
  int64_t table_row;
  int64_t entries;
  int k_page, v_page;
  int cache_rows;
  int pages;
  int more;
  int first_is_start;
  int room_k;
  int page_size;
  int page_shift;
  int box;
  // Scales of e4m3: what undoes the quantisation, or null. One value each; or with kBlockScales of head h and block i
  // of sequence b that at [b q_scale_batch + h q_scale_head + scale_start_q[b] + i], of q_scales blocks of a head.
  const float* q_descale;
  const float* k_descale;
  const float* v_descale;
  const int* scale_start_q;  // (batch), or null: 0
  const int* scale_start_k;
  int64_t q_scale_batch, q_scale_head, k_scale_batch, k_scale_head, v_scale_batch, v_scale_head;
  int q_scales, k_scales;
};

// Constants of a build that the host must know; the cubin holds one as `fmha_fwd_build`.
struct Build {
  int hdim_q, hdim_v;  // the largest it takes, of any multiples of 8
  int query_rows;      // of a tile
  int query_box;       // rows of one tensor copy of q
  int keys;            // of a tile: rows of one tensor copy of k or v
  int threads;
  int shared_bytes;
  int fp16;         // else bf16
  int fp8;          // q, k and v are e4m3
  int fp32;         // out is
  int bias_pieces;  // takes kBiasPieces
};

}  // namespace tilekiln::cuda::fmha_fwd
