// SPDX-License-Identifier: MIT
// The hopper engine of matrix products.
#include "kernels/gemm/gemm/cuda/hopper.h"

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        hopper) = {tilekiln::cuda::gemm::launch_hopper};
