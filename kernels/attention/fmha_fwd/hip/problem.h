// What a forward kernel of a HIP target is given, by value: plain data, the same on the host.
#pragma once

namespace tilekiln::hip {

/// Bits of ForwardProblem::features. A feature that is off costs its test, once a tile.
enum Feature : int {
  kWindow = 1,     // window_left, window_right
  kAlibi = 2,      // alibi_slopes
  kSoftcap = 4,    // softcap
  kLse = 8,        // lse
  kGroup = 16,     // cu_seqlens_q and cu_seqlens_k: sequences packed one behind the other
  kSink = 32,      // sink
  kBias = 64,      // bias
  kTopLeft = 128,  // the diagonal of window and alibi starts at the first query and key, not at the last ones
};

/// Strides are in elements; of a row, a head, a batch. A group has no batches: its rows begin at cu_seqlens_q[b].
/// Row i of a sequence sees key j where j <= i + shift + window_right and j >= i + shift - window_left, -1: unbounded;
/// shift is seqlen_k - seqlen_q, or 0 with kTopLeft.
struct ForwardProblem {
  const void *q, *k, *v;
  void* out;
  float* lse;
  const int *cu_seqlens_q, *cu_seqlens_k;
  const float* alibi_slopes;  // one a query head
  const float* sink;          // one a query head
  const void* bias;           // of q's dtype; the last dimension is contiguous
  long long q_batch, k_batch, v_batch, out_batch, lse_batch, bias_batch;
  int q_head, k_head, v_head, out_head, lse_head, bias_head;
  int q_row, k_row, v_row, out_row, bias_row;
  int seqlen_q, seqlen_k;  // of a group: the longest
  int hdim_q, hdim_v;      // those of the call: multiples of 8, at most the kernel's
  int heads_per_key_head;
  int window_left, window_right;
  float scale_log2;                   // softmax_scale log2 e
  float softcap, scale_over_softcap;  // softmax_scale / softcap
  int features;
};

}  // namespace tilekiln::hip
