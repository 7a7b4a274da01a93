// SPDX-License-Identifier: MIT
// The stream engine of matrix products on HIP targets: stream-K, in two launches.
#include "kernels/gemm/gemm/hip/launch.h"

namespace tilekiln::hip::gemm {
namespace {

tilekiln_status launch_stream(const Site& site, const void* problem) {
  const auto& of = *static_cast<const Batch*>(problem);
  const Problem& p = of.first;
  TILEKILN_TRY(matrix::refuse_more(p));
  if (p.m == 0 || p.n == 0 || p.k == 0) return launch_waves(site, problem);
  const Kernel* const kernel = find_product("stream_gemm_", p);
  if (kernel == nullptr) return fail_kernel("gemm by stream-K");
  const Build& build = build_as<Build>(*kernel);
  StreamParams params = {};
  TILEKILN_TRY(fill_params(of, build, &params.product));
  const int tiles = params.product.tiles_m * params.product.tiles_n;
  params.tile_steps = static_cast<int>((i64(p.k) + kStreamSteps - 1) / kStreamSteps);
  const i64 steps = i64(tiles) * params.tile_steps;
  if (steps > INT32_MAX)
    return fail_argument("a", "had %lld steps of %d along k in all tiles, must have at most 2^31 - 1 by stream-K",
                         steps, kStreamSteps);
  params.steps = static_cast<int>(steps);
  params.workers = static_cast<int>(std::min<i64>(steps, cuda::facts(site.device.id)->multiprocessors));
  cuda::LaunchMemory memory;
  const size_t part = static_cast<size_t>(build.rows) * static_cast<size_t>(build.columns) * sizeof(float);
  TILEKILN_TRY(memory.take(site, 2 * static_cast<size_t>(params.workers) * part, 0));
  params.parts = static_cast<float*>(memory.data());
  const auto run = [&](const char* function, int groups) {
    return launch(site, {kernel,
                         function,
                         {static_cast<unsigned>(groups), 1, 1},
                         static_cast<unsigned>(build.threads),
                         &params,
                         sizeof(params)});
  };
  TILEKILN_TRY(run("tilekiln_gemm_stream", params.workers));
  return run("tilekiln_gemm_add", tiles);
}

}  // namespace
}  // namespace tilekiln::hip::gemm

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET, stream) = {tilekiln::hip::gemm::launch_stream,
                                                                                   tilekiln::hip::any};
