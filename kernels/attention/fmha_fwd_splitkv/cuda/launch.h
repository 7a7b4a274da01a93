// SPDX-License-Identifier: MIT
// Rows of the kernels from a checked call over a KV cache: what the stages have in common. Included once, by the file
// of a pipeline, which is compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#pragma once
#include <string.h>

#include <initializer_list>

#include "kernels/attention/cuda/operands.h"
#include "kernels/attention/fill_places.h"
#include "kernels/backends/cuda/held.h"

#define TILEKILN_JOIN(a, b, c, d) a##b##c##d
#define TILEKILN_ENGINE(target, pipeline) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_splitkv_, pipeline)

namespace tilekiln::cuda {
namespace {

// The first kernel whose name begins so and that `fits`; null: the library has none.
template <class Fits>
const Kernel* find_kernel(const char* name, Fits&& fits) {
  return find_held([&](const Kernel& one) { return strncmp(one.name, name, strlen(name)) == 0 && fits(one); });
}

[[maybe_unused]] tilekiln_status fail_kernel(const char* what) {
  return fail(TILEKILN_INTERNAL, "the library has a row over a KV cache for cuda without its kernel, %s", what);
}

// Refuses an array that accesses of `multiple` elements cannot follow.
[[maybe_unused]] tilekiln_status check_steps(const char* name, const void* data, int multiple,
                                             std::initializer_list<i64> steps, int element = 2) {
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(multiple * element) != 0)
    return fail_argument(name, "data was at %p, must be aligned to %d bytes on cuda: pass a copy", data,
                         element * multiple);
  for (const i64 step : steps) {
    if (step % multiple == 0) continue;
    return fail_argument(name, "a stride was %lld elements, must be a multiple of %d on cuda: pass a copy", step,
                         multiple);
  }
  return TILEKILN_OK;
}

[[maybe_unused]] tilekiln_status check_hdim(const char* name, int hdim, int multiple) {
  if (hdim % multiple == 0) return TILEKILN_OK;
  return fail_argument(name, "had a head dim of %d, must have a multiple of %d on cuda: pad it with zeros", hdim,
                       multiple);
}

// Bytes of an element of the cache.
[[maybe_unused]] int cache_bytes(fmha::KvDtype dtype) {
  return dtype == fmha::KvDtype::fp16 || dtype == fmha::KvDtype::bf16 ? 2 : 1;
}

using fmha::fill_places;

}  // namespace
}  // namespace tilekiln::cuda
