// SPDX-License-Identifier: MIT
// The blocks engine of rmsnorm2d.
#include "kernels/norm/cuda/launch.h"

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        _rmsnorm2d) = {tilekiln::cuda::norm::launch_normalise};
