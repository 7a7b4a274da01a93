// SPDX-License-Identifier: MIT
// The registries of the C ABI from C++.
#include "registry.c"
