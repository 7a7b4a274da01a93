// SPDX-License-Identifier: MIT
// Operands from checked arguments of attention to what kernels of CUDA take: what the directions have in common.
#pragma once
#include <stdint.h>

#include "kernels/attention/cuda/coordinates.h"
#include "kernels/attention/fill_scores.h"
#include "kernels/backends/cuda/kernel.h"

namespace tilekiln::cuda {

using fmha::i64;

constexpr float log2_e = 1.4426950408889634f;

// An array of rows; steps in elements.
struct Operand {
  const char* name;
  const void* data;
  i64 row, head, sequence;  // sequence: of batch mode, from one to the next
  int hdim, nhead, seqlen;
  int box;        // rows of one copy
  int bytes = 2;  // of an element
};

// Refuses an operand whose address or strides neither TMA nor 16-byte accesses can follow.
tilekiln_status check_operand(const Operand& operand);

// Encodes an operand's map (coordinates.h). `dtype`: TILEKILN_FP16 and so on. `other`: any address of the device, for
// an array without rows.
tilekiln_status encode_operand(const Operand& operand, bool packed, int dtype, int batch, const void* other, int device,
                               TensorMap* map);

// Packing of sequences with starts or lengths of their own: those of batch mode are packed ones, from row b rows on.
struct Packing {
  bool packed;
  i64 rows_q, rows_k;

  // Step from one sequence to the next of an array of `row_step`: a row is counted from its sequence's start, which
  // batch mode's own strides hold already.
  i64 step_q(bool group, i64 sequence, i64 row_step) const {
    return !packed ? sequence : group ? 0 : sequence - rows_q * row_step;
  }
  i64 step_k(bool group, i64 sequence, i64 row_step) const {
    return !packed ? sequence : group ? 0 : sequence - rows_k * row_step;
  }
};
// `second_q` lies as q does, or is null.
tilekiln_status find_packing(bool packed, bool group, int batch, const Operand& q, const Operand* second_q,
                             const Operand& k, const Operand& v, Packing* packing);

// The fields of a kernel's row by which forward and backward mask, weigh and drop.
template <class Problem, class Row>
void fill_scores(const Problem& p, Row* row) {
  row->score_scale_log2 = p.features.softcap ? log2_e : p.softmax_scale * log2_e;
  row->softcap_inner = p.features.softcap ? p.softmax_scale / p.softcap : 0;
  row->bias_scale = log2_e / row->score_scale_log2;
  fmha::fill_mask(p, row);
  if (fmha::fill_dropout(p, row)) row->dropout_over = 0x10001u * (255u - core::dropout_threshold(p.dropout_p));
}

// The fields of a kernel's row that say where sequences lie.
template <class Row>
void fill_lengths(const fmha::DeviceLengths& at, bool group, const Packing& packing, Row* row) {
  row->rows_q = static_cast<int>(packing.rows_q);
  row->rows_k = static_cast<int>(packing.rows_k);
  const auto start = [&](const int* seqstart, const int* cu_seqlens) {
    return !group ? nullptr : seqstart != nullptr ? seqstart : cu_seqlens;
  };
  row->seqstart_q = start(at.seqstart_q, at.cu_seqlens_q);
  row->seqstart_k = start(at.seqstart_k, at.cu_seqlens_k);
  row->seqlen_q = at.seqlen_q;
  row->seqlen_k = at.seqlen_k;
  row->cu_seqlens_q = at.cu_seqlens_q != nullptr ? at.cu_seqlens_q : row->seqstart_q;
  row->cu_seqlens_k = at.cu_seqlens_k != nullptr ? at.cu_seqlens_k : row->seqstart_k;
}

}  // namespace tilekiln::cuda
