// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of fmha_fwd: plain data, no ISA, no std header.
//
// The host side (kernels/runtime) checks the arguments, picks an instance, resolves every sequence and hands out units;
// an engine (kernels/attention/fmha_fwd/cpu, compiled once per target) computes one unit. Nothing here may be an inline function:
// this header is seen under several -march levels and a merged weak symbol would run the wrong one (design decision 5).
#pragma once

namespace tilekiln::fmha {

using i64 = long long;
using u64 = unsigned long long;

// Values have the names of the axes in kernels/attention/fmha_fwd/family.yaml; the host code turns one into the other by name.
enum class Dtype : unsigned char { fp32, fp16, bf16, fp8bf16, fp8fp32, fp8fnuzbf16, bf8fnuzbf16 };
constexpr int kDtypes = 7;
enum class Bias : unsigned char { none, elementwise, alibi };
enum class Qscale : unsigned char { none, pertensor, blockscale };

// Features that an instance was built with. A feature that is false here is neither read nor paid for.
struct FwdFeatures {
  Dtype dtype;
  Bias bias;
  Qscale qscale;
  bool group, mask, lse, dropout, softcap, skip_min_seqlen_q, sink;
};

// The keys that a row sees: row i those of [i + shift - window_left, i + shift + window_right], where the features have a mask.
struct VisibleKeys {
  int window_left, window_right;  // -1: unbounded
  bool top_left;                  // shift = top_left ? 0 : seqlen_k - seqlen_q
  int sink_keys;                  // keys below it are visible whatever window_left says (never past i + shift + right)
};

// One call, after every check. Strides are in elements, signed; the last dimension is contiguous.
// Addresses of a unit: q + unit.q_offset + unit.head * q_head + row * q_row, and so on (see FwdUnit).
struct FwdProblem : VisibleKeys {
  FwdFeatures features;
  int nhead_q, nhead_k;     // nhead_q % nhead_k == 0; query head h reads key head h / (nhead_q / nhead_k)
  int hdim_q, hdim_v;       // of this call; at most the instance's
  const void *q, *k, *v;
  void* out;
  float* lse;               // natural logarithm; null when features.lse is false
  unsigned char* randval;   // null: not stored. The byte of (row, key) at randval + unit.randval_offset + head * randval_head + row * randval_row + key
  i64 q_head, q_row, k_head, k_row, v_head, v_row, out_head, out_row, lse_head, randval_head, randval_row;
  float softmax_scale;      // any finite value, 0 and negative included
  float softcap;            // > 0 with features.softcap
  const void* bias;         // dtype of the output (fp32 for fp32, else 16-bit of the same kind)
  i64 bias_head, bias_row;  // 0 where the bias is broadcast
  const float* alibi_slopes;
  const float* sink;        // [nhead_q] logits or null; features.sink
  float dropout_p;
  u64 rng_seed, rng_offset;
  const float *q_descale, *k_descale, *v_descale;  // pertensor: one value each; blockscale: see FwdUnit
  i64 q_descale_head, k_descale_head, v_descale_head;
  int block_scale_q, block_scale_k;                // rows and keys per scale block (128), multiples of the tile
  int q_scales, k_scales;                          // blocks of a head, of all its sequences
};

// One tile of queries of one head of one sequence, everything about its sequence resolved (element offsets from the pointers above).
struct FwdUnit {
  int batch, head, row;          // row: the first query of the tile, a multiple of the tile height
  int next_head = -1, next_row;  // the unit of the same sequence that this thread most likely computes next; -1: none
  int seqlen_q, seqlen_k;        // logical lengths of this sequence
  i64 q_offset, k_offset, v_offset, out_offset, lse_offset, randval_offset, bias_offset, alibi_offset;
  i64 q_descale_offset, k_descale_offset, v_descale_offset;
};

// Elements from one place of a sequence to the next: its batch index in batch mode, its start in group mode.
struct FwdSteps { i64 q, k, v, out, lse, randval, bias, alibi, q_descale, k_descale, v_descale; };

// Places of the sequences of a call, in the memory of its device, for kernels that find them by themselves. All null: every one has the
// longest lengths. Of numbers that the host has not looked at, a kernel makes something that stays within the arrays.
struct DeviceLengths {
  const int *seqstart_q, *seqstart_k;    // (batch + 1), group mode: the first row of each sequence; null: cu_seqlens says it
  const int *seqlen_q, *seqlen_k;        // null: cu_seqlens says it, or else the difference of two starts
  const int *cu_seqlens_q, *cu_seqlens_k;  // (batch + 1)
  int total_q, total_k;  // rows of packed arrays, within which a kernel keeps starts that the host has not seen; else INT32_MAX
  const int *scale_start_q, *scale_start_k;  // (batch), group mode with block scales: the first block of each sequence
};

// The whole call, which a kernel of a device takes in place of units.
struct FwdKernelProblem {
  FwdProblem problem;
  FwdSteps steps;
  DeviceLengths lengths;
  int batch, seqlen_q, seqlen_k;  // sequences; the longest
  int min_seqlen_q;               // sequences with at most so many queries are left untouched; 0: none
};

// The engine of one target for one pipeline. `tile` never reads or writes outside the rows and keys of the unit;
// scratch is at least scratch_bytes, aligned to 64, used by one thread at a time; its first 8 bytes are 0 when a call begins in
// a thread, then what the last unit of the call left there; all else is arbitrary.
struct FwdEngine {
  void (*tile[kDtypes])(const FwdProblem&, const FwdUnit&, void* scratch);  // by Dtype
  u64 scratch_bytes;
  int tile_q, tile_k;            // rows of a unit; keys per block
};

}  // namespace tilekiln::fmha
