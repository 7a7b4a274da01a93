// SPDX-License-Identifier: MIT
// Products with a quantised b, for the engine of gemm: compiled with a target's flags like it and joined with it. Nothing leaves this
// unit but to that engine.
#include "kernels/gemm/cpu/groups.h"
