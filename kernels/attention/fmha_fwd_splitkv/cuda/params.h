// SPDX-License-Identifier: MIT
// Parameters of the CUDA decode over a KV cache: the one argument of its kernels.
//
// Plain data. tools/gpu reads the fields of `Params` and `Build` from this text, so a declaration is one line.
#pragma once

#include <cstdint>

namespace tilekiln::cuda::fmha_decode {

// Bits of Params::features; each is uniform over a launch. Those of kGeneral are asked for by the general kernels
// alone.
enum Feature : int {
  kMask = 1,  // left, right, sink_keys
  kSoftcap = 2,
  kAlibi = 4,
  kBias = 8,
  kBottomRight = 16,
  kBytesIn = 32,
  kBytesOut = 64,
};

// Pages lie anywhere; every offset has 64 bits. The fields from `seqstart_q` to `page_shift` say where sequences are,
// by the names that places.h reads. Of a build of bytes k and v are e4m3, q with kBytesIn, out with kBytesOut: the bias
// is then fp32.
struct Params {
  const void* q;
  const void* k;
  const void* v;
  const int* seqstart_q;     // (batch), first rows of packed queries; or null: b q_batch
  const int* seqlen_q;       // (batch), or null
  const int* cu_seqlens_q;   // (batch + 1), whose differences are lengths without seqlen_q; or null: seqlen_q_most
  const int* seqlen_k;       // (batch), where keys end in the cache of their sequence; or null
  const int* cu_seqlens_k;   // (batch + 1), whose differences say it without seqlen_k; or null: room_k
  const int* first_key;      // (batch), the place of key 0 in the cache of the sequence; or null: 0
  const int* row_k;          // (batch), the sequence's row in the cache or the table; or null: b
  const int* table;          // page numbers; null: the cache is contiguous
  const int* table_at;       // (batch), where a sequence's pages begin in the table; or null: row table_row
  const int* table_start;    // (batch + 1), the same, and where they end: the pages say the length; or null
  const int* last_page_len;  // (batch), keys of the last page, with table_start; or null: page_size
  float* part_out;           // [(b seqlen_q_most + i) nhead_q + h][splits][hdim_v]: of each split, normalised
  float* part_lse;           // [(b seqlen_q_most + i) nhead_q + h][splits]: log2; -inf for a split without keys
  void* out;
  float* lse;                      // or null; [b lse_batch + h lse_head + row]
  const float* alibi_slopes;       // [b alibi_batch + h]
  const float* sink;               // (nhead_q) logits, or null
  const void* bias;                // of the dtype of out; [b bias_batch + h bias_head + row bias_row + key]
  int64_t q_batch, q_head, q_row;  // strides in elements
  int64_t out_batch, out_head, out_row;
  int64_t lse_batch, lse_head;
  int64_t alibi_batch;
  int64_t bias_batch, bias_head, bias_row;
  int64_t k_page, k_head, k_key, k_chunk;  // k_chunk: of 16 bytes in the head dim
  int64_t v_page, v_head, v_key, v_chunk;  // vectorized: v_chunk of 16 bytes of keys, v_key in the head dim
  int64_t table_row;                       // from one row of the table to the next
  int64_t entries;                         // of the table, with table_start
  int cache_rows;                          // of the cache or the table
  int pages;                               // of the pool
  int more;                                // keys behind those that seqlen_k counts
  int first_is_start;                      // seqlen_k counts from first_key; else from the start of the cache
  int room_k;                              // no place is beyond
  int page_size;
  int page_shift;  // log2 of page_size; -1: it is no power of two. 30 without a table
  int total_q;     // rows of packed queries
  int seqlen_q_most, seqlen_k_most;
  int batch, nhead_q, nhead_k;
  int hdim_q, hdim_v;  // of 16 bytes of the cache, or more of them
  int splits;
  int features;
  // Weights are 2^(score_scale_log2 s). Plain kernels: s = q k^T, score_scale_log2 = softmax_scale log2(e) > 0. General
  // ones: s = softmax_scale q k^T, capped, with bias or alibi, and score_scale_log2 = log2(e).
  float score_scale_log2;
  float softmax_scale;
  float softcap;
  int left, right;         // row i sees keys [i + shift - left, i + shift + right]
  int sink_keys;           // and keys below it
  const float* q_descale;  // of builds of bytes, and the next: of all of q, k and v; null: 1
  const float* k_descale;
  const float* v_descale;
  const float* out_scale;
  const float* k_page_scale;  // [page page_scale_page + head page_scale_head], pages of whole chunks; or null
  const float* v_page_scale;
  int64_t page_scale_page, page_scale_head;
};

// Arrays of a decode step, of one token a sequence: keys and values for the cache, and angles. Strides are in elements.
struct Step {
  const uint16_t* knew;
  const uint16_t* vnew;
  uint16_t* q;             // rotated in place
  const void* rotary_cos;  // [positions][hdim_q / 2], fp32 or of the dtype of k
  const void* rotary_sin;
  int64_t knew_batch, knew_head;
  int64_t vnew_batch, vnew_head;
  int64_t cos_row, sin_row;
  int64_t positions;
  int rotates;  // by pairs (i, i + hdim_q / 2)
  int rotary_fp32;
};
struct StepParams {
  Params decode;
  Step step;
};
// Splits of a step at most, the CTAs of a cluster, and the bytes behind the rings in which they merge.
constexpr int kStepSplits = 8;
constexpr int step_bytes(int splits, int rows, int hdim_v) {
  return splits == 1 ? 0 : splits * rows * (hdim_v + 1) * 4;
}

// Constants of a build that the host must know; the cubin holds one as `fmha_decode_build`.
struct Build {
  int hdim;  // the largest that it takes, of q and v
  int rows;  // of a tile: pairs of a query and a query head that shares the key head
  int threads;
  int shared_bytes;
  int fp16;   // else bf16
  int early;  // the second stage may begin under the first: it waits for its end
  int bytes;  // the cache is e4m3
};

// Threads of a block of the second stage, two columns each: a whole warp weighs the splits.
constexpr int threads_of_combine(int hdim) { return hdim < 64 ? 32 : hdim / 2; }

}  // namespace tilekiln::cuda::fmha_decode
