// SPDX-License-Identifier: MIT
// The blocks engine of rmsnorm2d on HIP targets.
#include "kernels/norm/hip/launch.h"

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET, _rmsnorm2d) = {
    tilekiln::hip::norm::launch_normalise, tilekiln::hip::any};
