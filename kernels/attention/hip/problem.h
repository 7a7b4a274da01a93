// SPDX-License-Identifier: MIT
// The argument of a forward kernel of a HIP target, by value, and a code object's constants: plain data, the same on
// the host.
#pragma once

namespace tilekiln::hip {

/// Bits of ForwardProblem::features. A feature that is off costs its test, once a tile.
enum Feature : int {
  kWindow = 1,       // left, right, sink_keys
  kAlibi = 2,        // alibi_slopes
  kSoftcap = 4,      // softcap
  kLse = 8,          // lse
  kSink = 32,        // sink
  kBias = 64,        // bias
  kTopLeft = 128,    // the diagonal of window and alibi starts at the first query and key, not at the last ones
  kRoundEven = 256,  // bf16 P is rounded to even; without these two its upper half is taken
  kRoundUp = 512,    // to nearest, halves up
};

/// Strides are in elements; of a row, a head, a batch. Packed sequences have no batches: their rows begin at
/// seqstart_q[b]. Row i of a sequence sees key j where j <= i + shift + right and j >= i + shift - left or j <
/// sink_keys; shift is seqlen_k - seqlen_q, or 0 with kTopLeft.
struct ForwardProblem {
  const void *q, *k, *v;
  void* out;
  float* lse;
  const int *seqstart_q, *seqstart_k;  // first rows of packed sequences; null: they lie in batches
  const int *seqlens_q, *seqlens_k;    // lengths of their own, at most seqlen_q and seqlen_k; null: as cu_seqlens says
  const int *cu_seqlens_q, *cu_seqlens_k;  // whose differences are the lengths; null: all have seqlen_q and seqlen_k
  const float* alibi_slopes;               // [b alibi_batch + head]
  const float* sink;                       // one a query head
  const void* bias;                        // of q's dtype; the last dimension is contiguous
  long long q_batch, k_batch, v_batch, out_batch, lse_batch, bias_batch, alibi_batch;
  long long q_head, k_head, v_head, out_head, lse_head, bias_head;
  unsigned long long dropout_seed, dropout_offset;  // kernels/backends/philox.h; of a code object with dropout
  int q_row, k_row, v_row, out_row, bias_row;
  int seqlen_q, seqlen_k;  // the longest
  int hdim_q, hdim_v;      // those of the call: multiples of 8, at most the kernel's
  int nhead_q, heads_per_key_head;
  int left, right, sink_keys;
  int min_seqlen_q;                   // sequences with at most so many queries are left untouched; 0: none
  float scale_log2;                   // softmax_scale log2 e, above 0
  float softcap, scale_over_softcap;  // softmax_scale / softcap
  int dropout_threshold;              // a probability is kept iff its byte is at most this
  float keep_scale;                   // 1 / (1 - dropout_p)
  int features;
  int total_q, total_k;  // rows of packed arrays: no start is beyond
};

/// Problem of a code object of fp8. Scales are one number each, or one for 2^scale_shift rows: q_descale[b batch + head
/// + (row >> scale_shift)]; in packed sequences from scale_start_q[b] on. Null: 1.
struct ScaledProblem : ForwardProblem {
  const float *q_descale, *k_descale, *v_descale;
  const int *scale_start_q, *scale_start_k;
  long long q_descale_batch, k_descale_batch, v_descale_batch;
  long long q_descale_head, k_descale_head, v_descale_head;
  int scale_shift;  // 30: one number
  float one;        // 1; the last field
};

/// Places of the sequences of a cache: the fields that kernels/attention/places.h reads.
struct CachePlaces {
  const int *seqstart_q, *seqlen_q,
      *cu_seqlens_q;                       // (batch), first rows; lengths; (batch + 1), whose differences are lengths
  const int *seqlen_k, *cu_seqlens_k;      // where keys end in the cache of their sequence
  const int* first_key;                    // the place of key 0
  const int* row_k;                        // the sequence's row in the cache or the table; null: its number
  const int* table;                        // page numbers; null: the cache is contiguous
  const int* table_at;                     // where a sequence's pages begin in the table; null: row times table_row
  const int *table_start, *last_page_len;  // (batch + 1), and where they end; keys of the last page
  long long table_row, entries;
  int cache_rows, pages, more, first_is_start, room_k;
  int page_size, page_shift;  // log2, -1: it is no power of two
  int total_q, seqlen_q_most, seqlen_k_most;
};

/// Problem of a code object over a KV cache. k_batch and v_batch step from page to page, or from row to row of a
/// contiguous cache.
struct CacheProblem : ForwardProblem {
  CachePlaces at;
  long long k_chunk, v_chunk;  // eight neighbours in the head dim; v_chunk of vectorized pages: eight neighbouring keys
  int k_bytes, v_bytes;        // what one buffer over the pool holds; 0: it may have more than a buffer's offsets reach
  int vectorized;
  int pack;  // query heads of a key head in one tile of rows, neighbouring heads of a query next to each other; else 1
  int splits;       // parts of the keys; with more than one, the next two are written in place of out and lse
  float* part_out;  // [(b seqlen_q + i) nhead_q + h][splits][hdim_v], normalised
  float* part_lse;  // [(b seqlen_q + i) nhead_q + h][splits], base 2; -inf for a part without keys
};

/// Problem of a cache whose keys and values are of 8 bits. Scales are one number each, or of k and v one for a page and
/// key head.
struct ScaledCacheProblem : CacheProblem {
  const float *q_descale, *k_descale, *v_descale;  // null: 1
  const float *k_page_scale, *v_page_scale;        // [page page_scale_page + key head page_scale_head]; null: none
  const float* out_scale;                          // of an out of e4m3; null: 1
  long long page_scale_page, page_scale_head;
  int out_fp8;  // out is e4m3, saturated; else bf16
  float one;    // 1; the last field
};

/// Problem of the kernel that puts splits together.
struct CombineProblem {
  const float *part_out, *part_lse;
  void* out;
  float* lse;  // null: not stored
  CachePlaces at;
  long long out_batch, out_head, out_row, lse_batch, lse_head;
  int nhead_q, hdim_v, splits;
  const float* out_scale;  // of an out of e4m3; null: 1
};

/// Problem of the append kernel. Strides are in elements; k_page and v_page step from page to page, or from row to row
/// of a contiguous cache.
struct AppendProblem : CachePlaces {
  void* q;  // rotated in place; or null
  void *k, *v;
  const void *knew, *vnew;
  const void *rotary_cos, *rotary_sin;  // [positions][rotary_dim / 2], fp32 or of the dtype of k
  long long q_batch, q_head, q_row;
  long long k_page, k_head, k_key, v_page, v_head, v_key;
  long long knew_batch, knew_head, knew_row, vnew_batch, vnew_head, vnew_row;
  long long cos_row, sin_row;
  long long positions;  // rows of rotary_cos
  int seqlen_new, nhead_q, nhead_k, hdim_q, hdim_v;
  int rotary_dim;   // even; 0: none
  int interleaved;  // pairs (2i, 2i + 1); else (i, i + rotary_dim / 2)
  int rotary_fp32;
  int q_advances;  // query i is at position seqlen_k + i, else at seqlen_k
};

/// Constants of a code object that the host must know; it holds one as `tilekiln_fmha_fwd_build`.
struct ForwardBuild {
  int hdim_q, hdim_v;  // the largest it takes
  int tile_q, tile_k;
  int threads;
  int bf16;     // else fp16
  int dropout;  // always; else never
  int fp8;      // 0: no; 1: out is bf16, of a cache also e4m3; 2: out is fp32; 3: k and v of a cache alone
  int fnuz;     // of fp8: 0: e4m3; 1: e4m3fnuz; 2: e5m2fnuz
};

struct AppendBuild {
  int threads;
  int bf16;  // else fp16
  int fp8;   // neither: bytes
};

struct CombineBuild {
  int threads;
  int bf16;  // of out; else fp16
  int fp8;   // e4m3
};

}  // namespace tilekiln::hip
