// SPDX-License-Identifier: MIT
// The blocks engine of rotary: a checked call becomes one launch. Compiled with -DTILEKILN_TARGET=<the target's name> and
// -DTILEKILN_KERNELS (held.h).
#include <algorithm>

#include "kernels/backends/held.h"
#include "kernels/norm/rotary/cuda/params.h"
#include "kernels/norm/wide.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _rotary_blocks)

namespace tilekiln::cuda::rotary {
namespace {

tilekiln_status launch_blocks(const Site& site, const void* problem) {
  const auto& a = *static_cast<const tilekiln::norm::Rotary*>(problem);
  if (a.rows == 0 || a.heads == 0) return TILEKILN_OK;
  const Kernel* const kernel =
      find_held([&](const Kernel& one) { return static_cast<const Build*>(one.build)->dtype == a.dtype; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has a rotary for cuda without its kernel");
  const Build& build = *static_cast<const Build*>(kernel->build);
  const int bytes = tilekiln::norm::bytes_of(a.dtype), width = 16 / bytes, table = a.tables == 0 ? 4 : 2;
  const auto fits = [&](long long length, long long step, int size) { return length <= 1 || step * size % 16 == 0; };
  const auto heads = [&](const void* data, long long batch, long long token, long long head) {
    return fits(a.rows / a.tokens, batch, bytes) && fits(a.tokens, token, bytes) && fits(a.heads, head, bytes) &&
           reinterpret_cast<uintptr_t>(data) % 16 == 0;
  };
  const auto rows = [&](const void* data, long long step) {
    return fits(a.table_rows, step, table) && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  };
  const int pairs = a.interleaved ? width / 2 : width;  // of a unit
  const bool wide = heads(a.x, a.x_batch, a.x_token, a.x_head) && heads(a.y, a.y_batch, a.y_token, a.y_head) &&
                    rows(a.cos, a.cos_row) && rows(a.sin, a.sin_row) && a.half % pairs == 0 && a.columns % width == 0;
  const int rest = a.columns - 2 * a.half;
  Params params = {a, wide ? 1 : 0, wide ? a.half / pairs : a.half, wide ? rest / width : rest, 0};
  long long items = static_cast<long long>(a.heads) * (params.units + params.rest);
  // Four heads a thread, whose vectors are on their way at once. They are all that is written.
  if (wide && params.units > 0 && params.units <= build.threads && rest == 0) {
    params.together = std::clamp((a.heads + 3) / 4, 1, build.threads / params.units);
    items = static_cast<long long>(params.together) * params.units;
  }
  const auto threads = static_cast<unsigned>(std::clamp<long long>((items + 31) / 32 * 32, 32, build.threads));
  const auto grid = static_cast<unsigned>(std::min<long long>(a.rows, INT32_MAX));
  return launch(site, {kernel, "rotary_heads", {grid, 1, 1}, threads, 0, &params, false, build.early != 0});
}

}  // namespace
}  // namespace tilekiln::cuda::rotary

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::rotary::launch_blocks};
