// SPDX-License-Identifier: MIT
// The blocks engine of reshape_and_cache: a checked call becomes one launch. Compiled with -DTILEKILN_TARGET=<the target's name> and
// -DTILEKILN_KERNELS (held.h).
#include <algorithm>

#include "kernels/backends/held.h"
#include "kernels/tensor/reshape_and_cache/cuda/params.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _reshape_and_cache_blocks)

namespace tilekiln::cuda::cache_write {
namespace {

bool is_wide(const tensor::CacheSide& s, int width, int from_bytes, int to_bytes) {
  const auto fits = [&](const void* data, int bytes, auto... steps) {
    return reinterpret_cast<uintptr_t>(data) % (width * bytes) == 0 && ((steps % width == 0) && ...);
  };
  return s.columns % width == 0 && fits(s.from, from_bytes, s.from_token, s.from_head) &&
         fits(s.to, to_bytes, s.page, s.place, s.head);
}

tilekiln_status launch_blocks(const Site& site, const void* problem) {
  const auto& a = *static_cast<const tensor::CacheWrite*>(problem);
  if (a.tokens == 0 || a.heads == 0) return TILEKILN_OK;
  const Kernel* const kernel =
      find_held([&](const Kernel& one) { return static_cast<const Build*>(one.build)->dtype == a.dtype; });
  if (kernel == nullptr)
    return fail(TILEKILN_INTERNAL, "the library has a reshape_and_cache for a GPU without its kernel");
  const Build& build = *static_cast<const Build*>(kernel->build);
  const int bytes = a.dtype == 0 ? 4 : 2, width = 16 / bytes, to_bytes = a.cache == 0 ? bytes : 1;
  const bool wide = is_wide(a.keys, width, bytes, to_bytes) && is_wide(a.values, width, bytes, to_bytes);
  const Params params = {a, wide ? 1 : 0, a.keys.columns / (wide ? width : 1), a.values.columns / (wide ? width : 1)};
  const long long items = static_cast<long long>(a.heads) * (params.keys + params.values);
  const auto threads = static_cast<unsigned>(std::clamp<long long>((items + 31) / 32 * 32, 32, build.threads));
  const auto grid = static_cast<unsigned>(std::min<long long>(a.tokens, INT32_MAX));
  return launch(site, {kernel, "reshape_and_cache", {grid, 1, 1}, threads, 0, &params, false, build.early != 0});
}

}  // namespace
}  // namespace tilekiln::cuda::cache_write

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::cache_write::launch_blocks};
