// SPDX-License-Identifier: MIT
/* Fills and reads of memory of a CUDA device, in the order of a stream, by the driver that XLA has loaded. */
#ifndef TILEKILN_BINDING_JAX_CUDA_MEMORY_H
#define TILEKILN_BINDING_JAX_CUDA_MEMORY_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

namespace cuda_memory {

using Address = unsigned long long; /* CUdeviceptr */
constexpr int32_t device_type = 2;  /* CUDA, as in DLPack */

struct Driver {
  int (*fill)(Address to, unsigned char byte, size_t bytes, void* stream) = nullptr;
  int (*to_host)(void* to, Address from, size_t bytes, void* stream) = nullptr;
  int (*synchronize)(void* stream) = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

/* Null where there is none, which a program of XLA for CUDA cannot meet. */
inline const Driver* driver() {
  static const Driver* const found = []() -> const Driver* {
    static Driver made;
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const bool has = library != nullptr && find(library, "cuMemsetD8Async", made.fill) &&
                     find(library, "cuMemcpyDtoHAsync_v2", made.to_host) &&
                     find(library, "cuStreamSynchronize", made.synchronize);
    return has ? &made : nullptr;
  }();
  return found;
}

/* These return whether it went well. */
inline bool zero(void* to, size_t bytes, void* stream) {
  return driver() != nullptr && driver()->fill(reinterpret_cast<Address>(to), 0, bytes, stream) == 0;
}

/* Waits for the stream. */
inline bool read(void* to, const void* from, size_t bytes, void* stream) {
  return driver() != nullptr && driver()->to_host(to, reinterpret_cast<Address>(from), bytes, stream) == 0 &&
         driver()->synchronize(stream) == 0;
}

}  // namespace cuda_memory

#endif
