// SPDX-License-Identifier: MIT
// The engine of a kernel of fixed features: the hopper pipeline's launch, with this kernel. A generated unit includes this; it says
// TILEKILN_PIPELINE and TILEKILN_IMAGE, the symbols of both, and TILEKILN_KERNEL, that of this engine.
#include "kernels/backends/cuda/kernel.h"

extern "C" const tilekiln::cuda::Engine TILEKILN_PIPELINE;
extern "C" const tilekiln::cuda::Kernel TILEKILN_IMAGE;
extern "C" const tilekiln::cuda::Engine TILEKILN_KERNEL = {nullptr, &TILEKILN_PIPELINE, &TILEKILN_IMAGE};
