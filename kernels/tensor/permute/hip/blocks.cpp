// SPDX-License-Identifier: MIT
// The blocks engine of moves on HIP targets: a checked move becomes the parameters of one launch. Compiled with -DTILEKILN_TARGET=<the target's
// name> and as kernels/backends/hip/held.h says.
#include <algorithm>

#include "kernels/backends/hip/held.h"
#include "kernels/tensor/hip/params.h"
#include "kernels/tensor/vectors.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _permute_blocks)

namespace tilekiln::hip::move {
namespace {

using tensor::Move;
using tensor::Way;

long long divide_up(long long a, long long b) { return (a + b - 1) / b; }

tilekiln_status launch_blocks(const Site& site, const void* problem) {
  const auto& m = *static_cast<const Move*>(problem);
  if (m.all_planes == 0) return TILEKILN_OK;
  const Kernel* const kernel = any();
  if (kernel == nullptr) return fail_kernel("a move");
  const int threads = build_as<Build>(*kernel).threads;
  Params params = {m, 1 << m.bytes, 1, 0, 0, 0};
  long long work = 0;
  const char* name = "tilekiln_move_scattered";
  if (m.way == static_cast<int>(Way::rows)) {
    name = "tilekiln_move_rows";
    params.bytes = static_cast<int>(tensor::as_vectors(&params.move) << m.bytes);
    while (params.lanes < threads && params.lanes < params.move.columns) params.lanes *= 2;
    work = divide_up(m.all_planes * m.rows, threads / params.lanes);
  } else if (m.way == static_cast<int>(Way::tiles)) {
    name = "tilekiln_move_tiles";
    params.tiles_r = divide_up(m.rows, kSide);
    params.tiles_c = divide_up(m.columns, kSide);
    work = params.tiles_r * params.tiles_c * m.all_planes;
  } else {
    work = divide_up(m.all_planes * m.rows * m.columns, threads);
  }
  constexpr long long most_blocks = 1 << 20;
  params.blocks = static_cast<int>(std::min(work, most_blocks));
  return launch(site, {kernel,
                       name,
                       {static_cast<unsigned>(params.blocks), 1, 1},
                       static_cast<unsigned>(threads),
                       &params,
                       sizeof(params)});
}

}  // namespace
}  // namespace tilekiln::hip::move

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::hip::move::launch_blocks,
                                                                           tilekiln::hip::any};
