// SPDX-License-Identifier: MIT
// The blocks engine of sample: a row a team of blocks, in turn where there are more. Compiled with -DTILEKILN_TARGET=<the target's name> and
// -DTILEKILN_KERNELS (held.h).
#include <algorithm>

#include "kernels/backends/held.h"
#include "kernels/norm/sample/cuda/params.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _sample_blocks)

namespace tilekiln::cuda::sample {
namespace {

tilekiln_status launch_blocks(const Site& site, const void* problem) {
  const auto& a = *static_cast<const tilekiln::norm::Sample*>(problem);
  if (a.rows == 0) return TILEKILN_OK;
  const Kernel* const kernel =
      find_held([&](const Kernel& one) { return static_cast<const Build*>(one.build)->dtype == a.dtype; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has sample for cuda without its kernel");
  const auto threads = static_cast<unsigned>(static_cast<const Build*>(kernel->build)->threads);
  const unsigned shared = kDigits * threads * static_cast<unsigned>(sizeof(unsigned long long));
  Params params = {a, nullptr, nullptr, 1};
  const int processors = facts(site.device.id)->multiprocessors;
  constexpr int least = 4096;  // columns of a block
  if (static_cast<const Build*>(kernel->build)->teams != 0)
    while (params.team < kTeam && a.rows * 2 * params.team <= processors && a.columns >= least * 2 * params.team)
      params.team *= 2;
  long long teams = std::min<long long>(a.rows, 2 * processors);
  LaunchMemory memory;
  const auto may_change = [](const tilekiln::norm::RealOfRows& of, float none) { return of.rows || of.all != none; };
  if (may_change(a.repetition, 1) || may_change(a.presence, 0) || may_change(a.frequency, 0)) {
    constexpr long long most = 1ll << 30;  // bytes of all teams' rows
    const long long row = (a.columns + 3ll) / 4 * 16;
    teams = std::clamp<long long>(most / (2 * row), 1, teams);
    TILEKILN_TRY(memory.take(site, static_cast<size_t>(2 * row * teams), 0));
    params.values = static_cast<float*>(memory.data());
    params.counts = reinterpret_cast<unsigned*>(static_cast<char*>(memory.data()) + row * teams);
  }
  const auto cluster = static_cast<unsigned>(params.team), grid = static_cast<unsigned>(teams) * cluster;
  return launch(site, {kernel, "sample_rows", {grid, 1, 1}, threads, shared, &params, false, false, cluster});
}

}  // namespace
}  // namespace tilekiln::cuda::sample

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::sample::launch_blocks};
