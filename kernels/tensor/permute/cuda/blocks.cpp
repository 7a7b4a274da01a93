// SPDX-License-Identifier: MIT
// The blocks engine of moves: a checked move becomes the parameters of one launch. Compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include <algorithm>

#include "kernels/backends/held.h"
#include "kernels/tensor/cuda/params.h"
#include "kernels/tensor/vectors.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _permute_blocks)

namespace tilekiln::cuda::move {
namespace {

using tensor::kOuter;
using tensor::Move;
using tensor::Way;

long long divide_up(long long a, long long b) { return (a + b - 1) / b; }

void fill_rows(Params* params, int threads, long long* work) {
  Move& m = params->move;
  params->bytes = static_cast<int>(tensor::as_vectors(&m) << m.bytes);
  constexpr int together = 4;  // vectors of a thread
  params->lanes = 1;
  while (params->lanes < threads && static_cast<long long>(params->lanes) * together < m.columns) params->lanes *= 2;
  *work = divide_up(m.all_planes * m.rows, threads / params->lanes) *
          divide_up(m.columns, static_cast<long long>(params->lanes) * together);
}

// Tells whether lines that are `step` elements apart all begin at 16 bytes, where those of planes do.
bool is_wide(const Move& m, const void* data, const long long* outer, long long step, long long lines) {
  const auto fits = [&](long long elements) { return (elements << m.bytes) % 16 == 0; };
  for (int i = 0; i < kOuter; ++i) {
    if (m.outer[i] > 1 && !fits(outer[i])) return false;
  }
  return (lines == 1 || fits(step)) && reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

tilekiln_status launch_blocks(const Site& site, const void* problem) {
  const auto& m = *static_cast<const Move*>(problem);
  if (m.all_planes == 0) return TILEKILN_OK;
  const Kernel* const kernel = find_held([](const Kernel&) { return true; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has a move without its kernel");
  const int threads = static_cast<const Build*>(kernel->build)->threads;
  Params params = {m, 1 << m.bytes, 0, 0, 0, 0, 0};
  long long work = 0;
  const char* name = "move_scattered";
  if (m.way == static_cast<int>(Way::rows)) {
    name = "move_rows";
    fill_rows(&params, threads, &work);
  } else if (m.way == static_cast<int>(Way::tiles)) {
    constexpr const char* names[] = {"move_tiles_1", "move_tiles_2", "move_tiles_4", "move_tiles_8"};
    name = names[m.bytes];
    constexpr int sides[] = {128, 128, 64, 64};
    params.tiles_r = divide_up(m.rows, sides[m.bytes]);
    params.tiles_c = divide_up(m.columns, sides[m.bytes]);
    params.wide_x = is_wide(m, m.x, m.outer_x, m.column_x, m.columns) ? 1 : 0;
    params.wide_y = is_wide(m, m.y, m.outer_y, m.row_y, m.rows) ? 1 : 0;
    work = params.tiles_r * params.tiles_c * m.all_planes;
  } else {
    work = divide_up(m.all_planes * m.rows * m.columns, threads);
  }
  const auto grid = static_cast<unsigned>(std::min<long long>(work, INT32_MAX));
  return launch(site, {kernel, name, {grid, 1, 1}, static_cast<unsigned>(threads), 0, &params, false});
}

}  // namespace
}  // namespace tilekiln::cuda::move

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::move::launch_blocks};
