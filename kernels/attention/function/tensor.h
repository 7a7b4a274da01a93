// SPDX-License-Identifier: MIT
// A tensor that functions from Python read, as plain data of hosts and kernels.
#pragma once

namespace tilekiln::fmha {

constexpr int kFunctionTensors = 8, kFunctionDims = 4;  // as python/tilekiln/api/functions/expression.py has them

// fp32 or int32, of any strides (elements); its numbers are at least 1.
struct FunctionTensor {
  const void* data;
  long long stride[kFunctionDims];
  int count[kFunctionDims];
};

// The parameters of a GPU's kernel, and what functions read behind them.
template <class Kernel> struct FunctionParams : Kernel {
  float softmax_scale;
  FunctionTensor tensor[kFunctionTensors];
  unsigned long long* shown;  // of the forward on Hopper, by tile, in its order, and 32 key tiles: KeyMap's bits
};
// Gradients beside them, of the same lengths, that a backward adds to; data null: nobody wants it.
template <class Kernel> struct FunctionBwdParams : FunctionParams<Kernel> {
  FunctionTensor gradient[kFunctionTensors];
};

}  // namespace tilekiln::fmha
