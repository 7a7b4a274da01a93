// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of the backward families: plain data, no ISA, no std header, no inline
// function (see fwd_engine.h).
//
//   D = rowsum(dO o O)                                              fmha_bwd_dot_do_o
//   S = softmax_scale Q K^T, capped or biased, masked   P = exp(S - LSE), dropped
//   dV = P^T dO    dP = dO V^T    dS = P o (dP - D)    dK = softmax_scale dS^T Q    dQ += dS K     fmha_bwd_dq_dk_dv
//   dQ = softmax_scale sum over splits                              fmha_bwd_convert_dq
//
// Source: Dao et al., "FlashAttention-2" (2023), section 3.1.2, with the features of fwd_engine.h.
#pragma once

#include "kernels/attention/fwd_engine.h"

namespace tilekiln::fmha {

struct BwdFeatures {
  Dtype dtype;          // fp32, fp16 or bf16
  Bias bias;
  bool group, mask, dbias, dropout, store_randval, softcap, sink, deterministic;
};

// One call, after every check. Strides in elements, signed; last dimensions contiguous, except that lse, delta and dq_acc say otherwise.
struct BwdProblem : VisibleKeys {
  BwdFeatures features;
  int nhead_q, nhead_k;
  int hdim_q, hdim_v;
  const void *q, *k, *v, *out, *dout;
  const float* lse;      // as the forward wrote it: natural logarithm, -inf for a row that saw no key
  float* delta;          // D, same place and strides as lse
  void *dq, *dk, *dv;    // dtype of q
  void* dbias;           // dtype of q, shape of a full bias: (batch, nhead_q, seqlen_q, seqlen_k); features.dbias. Every element of a
                         // unit's visible or invisible pairs is written (invisible: 0)
  unsigned char* randval;  // features.store_randval
  i64 q_head, q_row, k_head, k_row, v_head, v_row, out_head, out_row, dout_head, dout_row, lse_head;
  i64 dq_head, dq_row, dk_head, dk_row, dv_head, dv_row, dbias_head, dbias_row, randval_head, randval_row;
  float softmax_scale, softcap;
  const void* bias;
  i64 bias_head, bias_row;
  const float* alibi_slopes;
  const float* sink;
  float dropout_p;
  u64 rng_seed, rng_offset;
};

// Rows [row, row_end) of one head: for dot_do_o and convert_dq.
struct BwdRows {
  int batch, head, row, row_end;
  i64 out_offset, dout_offset, lse_offset, dq_offset;
  const float* dq_acc;   // convert_dq: row 0 of this head in its first split; element (row, col) at row * hdim_q + col
  i64 dq_acc_split;      // to the next split
  int nsplits;
  // convert_dq: as BwdUnit's, of this head in its first split, dq_begun_split to the next; null: every tile holds a sum.
  const unsigned char* dq_begun;
  i64 dq_begun_split;
};

// The most units that a chunk can be cut into.
constexpr int unit_parts = 4;

// A chunk of tile_k keys, or a part of one, against every query of the query heads [head, head_end), which share one key head, of one sequence.
struct BwdUnit {
  int batch, head, head_end;
  int key, key_end;              // key: a multiple of tile_k / unit_parts; at most tile_k keys
  int seqlen_q, seqlen_k;        // logical lengths; seqlen_q may be 0: dk = dv = 0 is written
  i64 q_offset, k_offset, v_offset, dout_offset, lse_offset, dk_offset, dv_offset, dbias_offset, bias_offset, alibi_offset, randval_offset;
  float* dq_acc;                 // row 0 of `head` in this unit's split, rows of hdim_q; added to, without the scale
  i64 dq_acc_head;               // to the next head
  // One byte per tile of tile_q queries of each head: [(h - head) * dq_tiles_head + tile].
  unsigned char* dq_locks;       // null: no other thread adds to these rows now
  unsigned char* dq_begun;       // 0: dq_acc of the tile holds nothing yet, and the first sum is stored, not added; null: all hold sums
  i64 dq_tiles_head;
  // Null: dk and dv are the final result, summed over [head, head_end), written in their dtype. Else fp32 rows of this (head, sequence), contiguous
  // (hdim_q, hdim_v), stored at row `key`, for the host to sum over the heads of a group.
  float *dk_acc, *dv_acc;
  const BwdUnit* next;           // the unit that this thread will probably run after this one, whose keys are worth fetching; or null
};

// Elements from one place of a sequence to the next.
struct BwdSteps { i64 q, k, v, out, dout, lse, dq, dk, dv, dbias, randval, bias, alibi; };

// The whole call, which a kernel of a device takes in place of units; the same for each stage.
struct BwdKernelProblem {
  BwdProblem problem;
  BwdSteps steps;
  DeviceLengths lengths;
  float* d_sink;                  // (nhead_q), with a sink logit; or null
  int batch, seqlen_q, seqlen_k;  // sequences; the longest
  bool alike;                     // batch mode, and every sequence has these lengths
  i64 total_q;                    // group mode: rows of all sequences
  int workers;                    // of the schedule; 0: chosen from the device
  int hdim_q, hdim_v;             // the largest that the instance of the main stage takes
  int stage;                      // TILEKILN_BWD_...
  char* workspace;                // the same for all stages, aligned to 16, contents arbitrary
  u64* workspace_bytes;           // not null: nothing is launched, and the bytes of workspace that all stages need are put there
};

// The engine of one target: kernels/attention/fmha_bwd/dq_dk_dv/cpu/qlanes.cpp holds all three stages of a target.
struct BwdEngine {
  // D into problem.delta. Also returns -sum exp(sink - LSE) D over the rows (0 without a sink): this unit's share of d_sink.
  float (*dot_do_o[kDtypes])(const BwdProblem&, const BwdRows&);
  void (*chunk[kDtypes])(const BwdProblem&, const BwdUnit&, void* scratch);
  void (*convert_dq[kDtypes])(const BwdProblem&, const BwdRows&);
  // to[i] = sum over heads of from[head * head_stride + i], rows of `width` of dtype to `to_row` apart: dk, dv of a group of heads.
  void (*sum_heads[kDtypes])(void* to, i64 to_row, const float* from, i64 head_stride, int heads, int rows, int width);
  u64 scratch_bytes;
  int tile_q, tile_k;
};

}  // namespace tilekiln::fmha
