// SPDX-License-Identifier: MIT
// Finish of sums to out, for the engine of gemm: compiled with a target's flags like it and joined with it. Nothing leaves this unit but
// to that engine.
#include "kernels/gemm/cpu/parts.h"
#include "kernels/gemm/cpu/quantise.h"
