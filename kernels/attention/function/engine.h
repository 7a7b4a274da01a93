// SPDX-License-Identifier: MIT
// The border of attention with functions from Python, between its host code and its engines: plain data, no ISA, no std header, no
// inline function. Both are generated just in time around these types (python/tilekiln/api/functions).
#pragma once
#include "kernels/attention/bwd_engine.h"
#include "kernels/attention/function/tensor.h"
#include "kernels/attention/fwd_engine.h"

namespace tilekiln::fmha {

// A call. What FwdProblem has beside strides, head dims, LSE and the mask is absent.
struct FunctionProblem : FwdProblem {
  static constexpr bool launches_kernels = true;

  FunctionTensor tensor[kFunctionTensors];
  i64 q_batch, k_batch, v_batch, out_batch, lse_batch;
  int batch, seqlen_q, seqlen_k;
};

// Engine of one target, dtype and pair of functions: one tile of queries of one head.
struct FunctionEngine {
  void (*tile)(const FunctionProblem&, const FwdUnit&, void* scratch);
  u64 scratch_bytes;
  int tile_q;
};

// Gradient of a tensor: sums of fp64, contiguous, to which units add, and the result. Null: nobody wants it.
struct FunctionGradient {
  double* sums;
  i64 step[kFunctionDims];
  float* data;
  i64 stride[kFunctionDims];
  int dims;
};

// A backward call. What BwdProblem has beside strides, head dims, LSE and the mask is absent.
struct FunctionBwdProblem : BwdProblem {
  static constexpr bool launches_kernels = true;

  FunctionTensor tensor[kFunctionTensors];
  FunctionGradient gradient[kFunctionTensors];
  i64 q_batch, k_batch, v_batch, out_batch, dout_batch, dq_batch, dk_batch, dv_batch;
  const float* given_lse;  // lse of the problem is a copy, in one piece as delta
  i64 given_batch, given_head;
  int batch, seqlen_q, seqlen_k;
  bool alone;  // one thread adds to sums
};

// A backward call as kernels of a device take it, a stage at a time. Gradients of tensors are zero before the main stage.
struct FunctionBwdKernelProblem {
  BwdKernelProblem of;
  FunctionTensor tensor[kFunctionTensors];
  FunctionTensor gradient[kFunctionTensors];
};

// Engine of the backward, as BwdEngine of one dtype: a chunk of keys of the heads that share them.
struct FunctionBwdEngine {
  float (*dot_do_o)(const BwdProblem&, const BwdRows&);
  void (*chunk)(const BwdProblem&, const BwdUnit&, void* scratch);
  void (*convert_dq)(const BwdProblem&, const BwdRows&);
  u64 scratch_bytes;
  int tile_q, tile_k;
};

}  // namespace tilekiln::fmha
