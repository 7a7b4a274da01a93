// SPDX-License-Identifier: MIT
// The blocks engine of rmsnorm2d_bwd.
#include "kernels/norm/cuda/backward.h"

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        _rmsnorm2d_bwd) = {tilekiln::cuda::norm::launch_backward<true>};
