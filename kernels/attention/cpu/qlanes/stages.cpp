// SPDX-License-Identifier: MIT
// The stages that the engines of stages.h share, compiled with a target's flags like them and joined with them. Nothing leaves this
// unit but to those engines.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 warns inside its own AVX-512 headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define TILEKILN_STAGE template
#include "kernels/attention/cpu/qlanes/stages.h"
