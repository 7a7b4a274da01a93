// SPDX-License-Identifier: MIT
// The blocks engine of layernorm2d_rdquant on HIP targets.
#include "kernels/norm/hip/launch.h"

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET, _layernorm2d_rdquant) = {
    tilekiln::hip::norm::launch_normalise, tilekiln::hip::any};
