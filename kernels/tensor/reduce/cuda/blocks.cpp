// SPDX-License-Identifier: MIT
// The blocks engine of reduce: a checked call becomes one launch, whose blocks share outputs where these are few. Compiled with -DTILEKILN_TARGET=<the
// target's name> and -DTILEKILN_KERNELS (held.h).
#include <algorithm>

#include "kernels/backends/held.h"
#include "kernels/tensor/reduce/cuda/params.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _reduce_blocks)

namespace tilekiln::cuda::reduce {
namespace {

using tensor::Reduce;

long long divide_up(long long a, long long b) { return (a + b - 1) / b; }

// Tells whether every line of x begins at 16 bytes and elements of a line follow each other.
bool is_wide(const Reduce& a, bool columns, int bytes) {
  const auto fits = [&](long long length, long long step) { return length <= 1 || step * bytes % 16 == 0; };
  for (int i = 0; i < tensor::kKept; ++i) {
    if (!fits(a.kept[i], a.kept_x[i])) return false;
  }
  for (int i = 0; i < tensor::kReduced; ++i) {
    if (!fits(a.reduced[i], a.reduced_x[i])) return false;
  }
  return (columns || a.step == 1) && reinterpret_cast<uintptr_t>(a.x) % 16 == 0;
}

tilekiln_status launch_blocks(const Site& site, const void* problem) {
  const auto& a = *static_cast<const Reduce*>(problem);
  const bool columns = a.way == static_cast<int>(tensor::ReduceWay::columns);
  if (a.outputs == 0 || (columns && a.length == 0)) return TILEKILN_OK;
  const Kernel* const kernel =
      find_held([&](const Kernel& one) { return static_cast<const Build*>(one.build)->dtype == a.dtype; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has a reduction for cuda without its kernel");
  const int threads = static_cast<const Build*>(kernel->build)->threads, bytes = a.dtype == 0 ? 4 : 2;
  Params params = {a,  1, 1, 0,      nullptr, static_cast<float>(a.scale), is_wide(a, columns, bytes) ? 1 : 0,
                   32, 0, 8, nullptr};
  if (a.operation == static_cast<int>(tensor::Reduction::min)) params.sign = 1u << 31;
  for (const long long length : a.reduced) params.all_reduced *= length;
  const bool lines = !columns && params.wide != 0 && params.all_reduced == 1;
  const long long width = 16 / bytes;
  // Work of a team: of a block rows of 32 vectors by eight warps; or the vectors of a row, of a warp or a block.
  const long long all =
      columns ? params.all_reduced : params.all_reduced * divide_up(a.length, params.wide != 0 ? width : 1);
  if (columns || all >= 4 * threads) params.lanes = threads;  // four loads of each thread are under way
  const long long teams = columns ? a.outputs * divide_up(a.length, 32 * width) : a.outputs;
  constexpr long long least = 8;                              // loads of a thread
  const long long a_load = columns ? threads / 32 : threads;  // of what a team takes, by one load of each thread
  const long long processors = facts(site.device.id)->multiprocessors;
  // Blocks of columns meet: there are no more than the processors have at once.
  const long long wanted = (columns ? kColumnBlocks : (lines ? kPartBlocks : kRowBlocks) * kTurns) * processors;
  params.parts = kBlocksMeet && params.lanes == threads
                     ? std::clamp<long long>(wanted / teams, 1, std::max(1ll, all / (least * a_load)))
                     : 1;
  params.each = divide_up(all, params.parts);
  if (!columns && params.parts > 1) params.each = divide_up(params.each, least * a_load) * least * a_load;
  params.parts = std::max(1ll, divide_up(all, std::max(1ll, params.each)));
  LaunchMemory memory;
  const long long values = columns ? a.outputs * a.length : teams;
  if (params.parts > 1) {
    const long long pairs = divide_up(params.parts * values, 2);  // 16 bytes
    TILEKILN_TRY(
        memory.take(site, static_cast<size_t>(pairs) * 2 * sizeof(Two), static_cast<uint32_t>(columns ? 1 : teams)));
    params.values = static_cast<Two*>(memory.data()), params.arrivals = memory.zeros();
  }
  // Threads that add the parts of a column: neighbours read neighbouring values, and every processor has a block.
  while (params.join_lanes < threads && values * params.join_lanes < processors * threads) params.join_lanes *= 2;
  const char* const function = columns                     ? "reduce_columns"
                               : lines && params.parts > 1 ? "reduce_parts"
                               : lines                     ? "reduce_lines"
                                                           : "reduce_rows";
  const long long blocks = std::min<long long>(divide_up(teams * params.parts * params.lanes, threads), INT32_MAX);
  return launch(site, {kernel,
                       function,
                       {static_cast<unsigned>(blocks), 1, 1},
                       static_cast<unsigned>(threads),
                       0,
                       &params,
                       columns && params.parts > 1});
}

}  // namespace
}  // namespace tilekiln::cuda::reduce

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::reduce::launch_blocks};
