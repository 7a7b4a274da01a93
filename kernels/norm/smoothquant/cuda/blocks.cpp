// SPDX-License-Identifier: MIT
// The blocks engine of smoothquant.
#include "kernels/norm/cuda/launch.h"

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        _smoothquant) = {tilekiln::cuda::norm::launch_normalise};
