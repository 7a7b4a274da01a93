// SPDX-License-Identifier: MIT
// The blocks engine of moe_sorting: a checked call becomes one launch, of many tokens three. Compiled with -DTILEKILN_TARGET=<the target's name>
// and -DTILEKILN_KERNELS (held.h).
#include <algorithm>

#include "kernels/backends/held.h"
#include "kernels/moe/moe_sorting/cuda/params.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _moe_sorting_blocks)

namespace tilekiln::cuda::moe_sorting {
namespace {

tilekiln_status launch_blocks(const Site& site, const void* problem) {
  const auto& a = *static_cast<const tilekiln::moe::MoeSorting*>(problem);
  const Kernel* const kernel = find_held([](const Kernel&) { return true; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has moe_sorting for cuda without its kernel");
  const auto threads = static_cast<unsigned>(static_cast<const Build*>(kernel->build)->threads);
  const long long items = 1ll * a.tokens * a.topk, warps = threads / 32;
  // Items of a chunk, and numbers that one block adds up for an expert; numbers of all of them.
  constexpr long long least = 256, most = 256, most_counts = 1 << 24;
  Params params = {a, 1, nullptr, nullptr, nullptr};
  params.chunks =
      static_cast<int>(std::clamp<long long>(std::min(items / least, most_counts / std::max(a.experts, 1)), 1, most));
  LaunchMemory memory;
  TILEKILN_TRY(memory.take(site, static_cast<size_t>((params.chunks + 2ll) * a.experts * 4 + 15) / 16 * 16, 0));
  params.counts = static_cast<int*>(memory.data());
  params.begins = params.counts + 1ll * params.chunks * a.experts;
  params.heres = params.begins + a.experts;
  const long long blocks = (params.chunks + warps - 1) / warps;
  const long long zeroing =
      a.out == nullptr ? 0 : std::min<long long>(a.tokens, 8 * facts(site.device.id)->multiprocessors);
  const auto stage = [&](const char* name, long long grid) {
    return launch(site, {kernel, name, {static_cast<unsigned>(grid), 1, 1}, threads, 0, &params, false});
  };
  // Blocks of AMD's executor pass nothing on in memory before a launch ends.
  if (kBlocksMeet && params.chunks <= warps) return stage("sorting_whole", 1 + zeroing);
  TILEKILN_TRY(stage("sorting_counts", blocks + zeroing));
  TILEKILN_TRY(stage("sorting_places", 1));
  return stage("sorting_scatters", blocks);
}

}  // namespace
}  // namespace tilekiln::cuda::moe_sorting

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::moe_sorting::launch_blocks};
