// SPDX-License-Identifier: MIT
// The words engine of flatmm on Hopper: a checked call is one launch of the products of flatmm_quant's panels. Compiled with
// -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include "kernels/gemm/flatmm_quant/cuda/panel_launch.h"
#include "kernels/gemm/lists.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _flatmm_words)

namespace tilekiln::cuda::words {
namespace {

tilekiln_status launch_matrix(const Site& site, const void* problem) {
  matrix::Grouped g = {};
  g.product = static_cast<const matrix::Batch*>(problem)->first;
  const matrix::Problem& p = g.product;
  if (p.m == 0 || p.n == 0) return TILEKILN_OK;
  const bool fp16 = p.dtype == matrix::Dtype::fp16;
  const Kernel* const kernel = find(fp16, 1 + panels::kOfRows, false);
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has flatmm for cuda without its kernel");
  if (p.k > 0) {
    TILEKILN_TRY(check_rows(p, 2));
    TILEKILN_TRY(check_begins("b", p.b));
  }
  g.group = std::max(p.k, 1);
  return launch_panels(site, kernel, g, fp16 ? 1 : 2, false, fp16);
}

}  // namespace
}  // namespace tilekiln::cuda::words

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::words::launch_matrix};
