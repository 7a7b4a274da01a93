// SPDX-License-Identifier: MIT
// The argument of the backward kernels of a HIP target, by value, the same for each stage, and a code object's
// constants.
#pragma once

namespace tilekiln::hip {

/// Bits of BackwardProblem::features.
enum BackwardFeature : int {
  kBwdWindow = 1,
  kBwdAlibi = 2,
  kBwdSoftcap = 4,
  kBwdBias = 8,
  kBwdTopLeft = 16,
  kBwdDropout = 32,
  // Workers walk over units (kernels/attention/fmha_bwd/schedule.h), each in its order: the same sums in every run.
  kBwdBatchWalk = 64,
  kBwdGroupWalk = 128,
};

/// Strides are in elements; of a row, a head, a batch (0 for packed sequences). Lengths and window as ForwardProblem
/// says.
struct BackwardProblem {
  const void *q, *k, *v, *out, *dout;
  void *dq, *dk, *dv, *dbias;  // dbias: null, or the full shape
  const float* lse;            // as the forward wrote it
  float* delta_out;            // null, or where rowsum(dout out) goes for the caller; as lse lies
  float* d_sink;               // null, or (nhead_q)
  float* delta;                // workspace, [head][row of all sequences]
  // The workspace as kernels/attention/fmha_bwd/workspace.h lays it out; of dq_acc each sequence has [nhead_q, nsplits,
  // physical seqlen_q, hdim_q], unscaled. offsets, cu_state and batch_state: with kBwdGroupWalk, written by the first
  // stage.
  int *nsplits, *cu_state, *batch_state;
  long long* offsets;
  float* dq_acc;
  long long acc_elements;  // that dq_acc has room for
  unsigned char* randval;  // null, or where the random bytes of dropout go
  const int *seqstart_q, *seqstart_k, *seqlens_q, *seqlens_k, *cu_seqlens_q, *cu_seqlens_k;
  const float* alibi_slopes;
  const float* sink;
  const void* bias;
  long long q_batch, q_head, k_batch, k_head, v_batch, v_head, out_batch, out_head, dout_batch, dout_head;
  long long dq_batch, dq_head, dk_batch, dk_head, dv_batch, dv_head, lse_batch, lse_head;
  long long bias_batch, bias_head, bias_row, dbias_batch, dbias_head, dbias_row, alibi_batch;
  long long randval_batch, randval_head, randval_row;
  long long rows;  // of all sequences, padding included
  unsigned long long dropout_seed, dropout_offset;
  int q_row, k_row, v_row, out_row, dout_row, dq_row, dk_row, dv_row;
  int batch, nhead_q, heads_per_key_head;
  int seqlen_q, seqlen_k;  // the longest
  int total_q, total_k;
  int hdim_q, hdim_v;
  int left, right, sink_keys;
  int splits;                                              // of every sequence; of none with kBwdGroupWalk
  int workers, total_units, units_a_head, units_a_worker;  // with kBwdBatchWalk all, with kBwdGroupWalk the first
  float softmax_scale, softcap;
  int dropout_threshold;
  float keep_scale;
  int features;
};

struct BackwardBuild {
  int hdim;            // the largest it takes, of q and of v
  int tile_q, tile_k;  // of the main stage
  int threads;         // of it; the other stages have kRowThreads
  int bf16;            // else fp16
  int parts;           // of the columns, a workgroup of the main stage each
};

constexpr int kScheduleThreads = 32;
constexpr int kRowThreads = 256, kRowTile = 32;  // of the first and the last stage: threads and rows of a workgroup

}  // namespace tilekiln::hip
