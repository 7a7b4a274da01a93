// SPDX-License-Identifier: MIT
// Parameters of the CUDA append to a KV cache: the one argument of its kernel.
//
// Plain data. tools/gpu reads the fields of `Params` and `Build` from this text, so a declaration is one line.
#pragma once

#include <cstdint>

namespace tilekiln::cuda::fmha_append {

// Strides are in elements of 16 bits. The fields from `seqstart_q` to `page_shift` are those of
// kernels/attention/places.h.
struct Params {
  uint16_t* q;  // rotated in place; or null
  uint16_t* k;
  uint16_t* v;
  const uint16_t* knew;
  const uint16_t* vnew;
  const void* rotary_cos;  // [positions][rotary_dim / 2], fp32 or of the dtype of k
  const void* rotary_sin;
  const int* seqstart_q;
  const int* seqlen_q;
  const int* cu_seqlens_q;
  const int* seqlen_k;
  const int* cu_seqlens_k;
  const int* first_key;
  const int* row_k;
  const int* table;
  const int* table_at;
  const int* table_start;
  const int* last_page_len;
  int64_t q_batch, q_head, q_row;
  int64_t k_page, k_head, k_key;
  int64_t v_page, v_head, v_key;
  int64_t knew_batch, knew_head, knew_row;
  int64_t vnew_batch, vnew_head, vnew_row;
  int64_t cos_row, sin_row;
  int64_t positions;  // rows of rotary_cos
  int64_t table_row;
  int64_t entries;
  int cache_rows;
  int pages;
  int more;
  int first_is_start;
  int room_k;
  int page_size;
  int page_shift;
  int total_q;
  int seqlen_q_most, seqlen_k_most;
  int seqlen_new;
  int batch, nhead_q, nhead_k;
  int hdim_q, hdim_v;
  int rotary_dim;   // even; 0: none
  int interleaved;  // pairs (2i, 2i + 1); else (i, i + rotary_dim / 2)
  int rotary_fp32;
  int q_advances;  // query i is at position seqlen_k + i, else at seqlen_k
  // RMS norm of each head before it is rotated; null: none.
  const void* q_gamma;
  const void* k_gamma;
  float norm_epsilon;
  int gamma_fp32;   // else of the dtype of k
  int norm_rounds;  // x / rms is rounded before it meets them
  int wide;         // all lies in pieces of 16 bytes, and heads are rotated whole, by pairs of the second kind, or not
};

constexpr int kMostHdim = 512;

// Constants of a build that the host must know; the cubin holds one as `fmha_append_build`.
struct Build {
  int threads;
  int fp16;   // else bf16
  int early;  // 1: it may begin under the launch before it
};

}  // namespace tilekiln::cuda::fmha_append
