// SPDX-License-Identifier: MIT
// The blocks engine of layernorm2d_rdquant.
#include "kernels/norm/cuda/launch.h"

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET, _layernorm2d_rdquant) = {
    tilekiln::cuda::norm::launch_normalise};
