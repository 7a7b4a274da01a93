// SPDX-License-Identifier: MIT
// Kernels of every product on Hopper (kernel.h), a form of tiles each, and the one of few rows.
//
// -D: those of kernel.h, LOADER_REGISTERS, REGISTERS.
#include "kernels/gemm/gemm/cuda/few_rows.h"
#include "kernels/gemm/gemm/cuda/kernel.h"

namespace tilekiln::cuda::gemm {

struct OfAll {
  static constexpr bool kPlain = false;
  // Stages of parts are of two lines, so that sums are added half as often: .78 of the speed of bf16 with one.
  static constexpr Form form(int number) {
    Form form = kForms[number];
    if (kParts) form.deep = 2, form.stages /= 2;
    return form;
  }
  static constexpr int loader(const Form&) { return LOADER_REGISTERS; }
  static constexpr int consumer(const Form&) { return REGISTERS; }
  static constexpr bool shares(const Form&) { return true; }
};
template <int kForm> constexpr int kBytesOf = sizeof(typename Kernel<OfAll, kForm>::Shared);
constexpr int kThreads = Kernel<OfAll, 0>::Warps::kThreads, kSharedBytes = kBytesOf<2>;
static_assert(kSharedBytes <= 232448, "a CTA of Hopper has 227 KB of shared memory");
static_assert(kBytesOf<0> <= kSharedBytes && kBytesOf<1> <= kSharedBytes && kBytesOf<3> <= kSharedBytes,
              "all forms are launched with as much shared memory as form 2 has");

}  // namespace tilekiln::cuda::gemm

using namespace tilekiln::cuda;
using gemm::OfAll;

GEMM_BUILD(OfAll, gemm::kThreads, gemm::kSharedBytes)
GEMM(OfAll, gemm_hopper, 0)
#if !BLOCKS
GEMM(OfAll, gemm_hopper_192, 1)
#endif
GEMM(OfAll, gemm_hopper_128, 2)
GEMM(OfAll, gemm_hopper_64, 3)
#if !BLOCKS && (defined(TILEKILN_FP8) || defined(TILEKILN_BF8))
GEMM(OfAll, gemm_hopper_fast, 0, false)
#endif
#if !PARTS && !LINES_A && !LINES_B && !defined(TILEKILN_FP8) && !defined(TILEKILN_BF8) && !defined(TILEKILN_INT8)
extern "C" __global__ void __launch_bounds__(32 * gemm::kFewWarps, 2)
    gemm_few_rows(const __grid_constant__ gemm::Params p) {
  gemm::few_rows(p);
}
#endif
