// SPDX-License-Identifier: MIT
// Elements of the tensors that functions from Python read, on CPUs and on NVIDIA GPUs.
#pragma once

#include "kernels/attention/function/tensor.h"
#include "kernels/backends/scalars.h"

namespace tilekiln::scalars::inline TILEKILN_TARGET {

// An index below 0 is 0, one past the last is the last.
TILEKILN_DEVICE int within(int index, int count) { return index < 0 ? 0 : index < count ? index : count - 1; }

template <class T, class... Index> TILEKILN_DEVICE T element(const fmha::FunctionTensor& t, Index... index) {
  long long at = 0;
  int d = 0;
  ((at += t.stride[d] * within(index, t.count[d]), ++d), ...);
  return ((const T*)t.data)[at];
}

#ifdef __CUDACC__
// The gradient of an element, in a tensor of the same lengths, takes x.
template <class... Index>
TILEKILN_DEVICE void add_to(const fmha::FunctionTensor& t, const fmha::FunctionTensor& gradient, float x,
                            Index... index) {
  if (gradient.data == nullptr) return;
  long long at = 0;
  int d = 0;
  ((at += gradient.stride[d] * within(index, t.count[d]), ++d), ...);
  atomicAdd(static_cast<float*>(const_cast<void*>(gradient.data)) + at, x);
}
#endif

}  // namespace tilekiln::scalars::inline TILEKILN_TARGET
