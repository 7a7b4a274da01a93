// SPDX-License-Identifier: MIT
// The border between host.cpp and the engines: plain data, no ISA, no std header, no inline function.
#pragma once
#include "kernels/attention/fwd_engine.h"

namespace tilekiln::relative {

// A call. What FwdProblem has beside strides, head dims and the mask is absent.
struct Problem : fmha::FwdProblem {
  const float* distance_bias;  // [head][distance]
  long long bias_of_head;
  int distances, dtype;  // by value of the axis dtype
  long long q_batch, k_batch, v_batch, out_batch;
  int batch, seqlen_q, seqlen_k;
};

// tile[dtype] computes one tile of queries of one head.
struct Engine {
  void (*tile[2])(const Problem&, const fmha::FwdUnit&, void* scratch);
  unsigned long long scratch_bytes;
  int tile_q;
};

}  // namespace tilekiln::relative
