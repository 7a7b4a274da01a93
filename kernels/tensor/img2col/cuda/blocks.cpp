// SPDX-License-Identifier: MIT
// The blocks engine of img2col: a checked call becomes the parameters of one launch. Compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include <algorithm>

#include "kernels/backends/held.h"
#include "kernels/tensor/img2col/cuda/params.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _img2col_blocks)

namespace tilekiln::cuda::img2col {
namespace {

tilekiln_status launch_blocks(const Site& site, const void* problem) {
  const auto& a = *static_cast<const tensor::Img2col*>(problem);
  if (a.patches == 0 || a.bytes == 0) return TILEKILN_OK;
  const Kernel* const kernel = find_held([](const Kernel&) { return true; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has img2col for cuda without its kernel");
  const int threads = static_cast<const Build*>(kernel->build)->threads;
  Params params = {};
  params.images = a, params.width = 16;
  const auto fits = [&](long long bytes) { return bytes % params.width == 0; };
  while (!(fits(a.bytes) && fits(a.x_image) && fits(a.x_row) && fits(a.x_pixel) && fits(a.y_group) && fits(a.y_row) &&
           fits(static_cast<long long>(reinterpret_cast<uintptr_t>(a.x) % 16)) &&
           fits(static_cast<long long>(reinterpret_cast<uintptr_t>(a.y) % 16))))
    params.width /= 2;
  const int vectors = a.bytes / params.width;
  const long long all = 1ll * a.filter_height * a.filter_width * vectors;
  if (all > INT32_MAX)
    return fail_argument("filter", "was (%d, %d) of %d bytes, must make rows of fewer than 2^31 moves on cuda",
                         a.filter_height, a.filter_width, a.bytes);
  const long long rows = a.patches * a.groups, moves = rows <= INT64_MAX / all ? rows * all : INT64_MAX;
  params.few = moves <= INT32_MAX ? 1 : 0;
  const auto divisor = [](long long by) { return Divisor::of(static_cast<unsigned>(by)); };
  params.all = divisor(all), params.along = divisor(1ll * a.filter_width * vectors), params.vectors = divisor(vectors);
  params.out_width = divisor(a.out_width);
  if (params.few != 0) params.patches = divisor(a.patches), params.of_image = divisor(1ll * a.out_height * a.out_width);
  const long long blocks = (moves - 1) / (1ll * kAtOnce * threads) + 1;
  const auto grid = static_cast<unsigned>(std::min<long long>(blocks, INT32_MAX));
  return launch(site, {kernel, "img2col_patches", {grid, 1, 1}, static_cast<unsigned>(threads), 0, &params, false});
}

}  // namespace
}  // namespace tilekiln::cuda::img2col

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::img2col::launch_blocks};
