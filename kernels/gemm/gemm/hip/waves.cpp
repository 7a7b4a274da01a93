// SPDX-License-Identifier: MIT
// The waves engine of matrix products on HIP targets.
#include "kernels/gemm/gemm/hip/launch.h"

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET, waves) = {tilekiln::hip::gemm::launch_waves,
                                                                                  tilekiln::hip::any};
