// SPDX-License-Identifier: MIT
// The engine of a kernel of fixed features: the waves pipeline's launch, with this kernel. A generated unit includes this; it says
// TILEKILN_PIPELINE and TILEKILN_IMAGE, the symbols of both, and TILEKILN_KERNEL, that of this engine.
#include "kernels/backends/hip/kernel.h"

extern "C" const tilekiln::hip::Engine TILEKILN_PIPELINE;
extern "C" const tilekiln::hip::Kernel TILEKILN_IMAGE;
namespace {
const tilekiln::hip::Kernel* image() { return &TILEKILN_IMAGE; }
}  // namespace
extern "C" const tilekiln::hip::Engine TILEKILN_KERNEL = {nullptr, image, &TILEKILN_PIPELINE, &TILEKILN_IMAGE};
