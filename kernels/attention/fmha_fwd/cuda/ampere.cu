// SPDX-License-Identifier: MIT
// The kernels of ampere.h: of arrays or a contiguous cache, and of keys in pages.
#include "kernels/attention/fmha_fwd/cuda/ampere.h"

TILEKILN_FORWARD(fmha_fwd_ampere, tilekiln::cuda::fmha_fwd::AmpereParams, false)
TILEKILN_FORWARD(fmha_fwd_ampere_pages, tilekiln::cuda::fmha_fwd::AmpereParams, true)
