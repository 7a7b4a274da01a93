// SPDX-License-Identifier: MIT
/* Values on the stack of a boxed function of PyTorch's stable ABI, which owns them. */
#ifndef TILEKILN_TORCH_STACK_H
#define TILEKILN_TORCH_STACK_H

#include <cstring>

#include "shim.h"

namespace tilekiln::torch {

using Boxed = void (*)(StableIValue*, uint64_t, uint64_t);

/* Optional values are on the heap. */
inline void drop_optional(StableIValue value) {
  StableIValue* const holder = reinterpret_cast<StableIValue*>(value);
  if (shim.torch_delete_stable_ivalue)
    shim.torch_delete_stable_ivalue(holder);
  else
    delete holder;
}

template <class T>
T read(StableIValue value) {
  T result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

inline bool is_defined(AtenTensorHandle tensor) {
  bool defined = false;
  return !shim.aoti_torch_is_defined(tensor, &defined) && defined;
}

/* Does autograd watch it? */
inline bool is_watched(AtenTensorHandle tensor) {
  return !shim.requires_grad || shim.requires_grad(*reinterpret_cast<void* const*>(tensor));
}

}  // namespace tilekiln::torch

#endif
