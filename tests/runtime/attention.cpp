// SPDX-License-Identifier: MIT
// Program of attention.c as C++: the header serves both.
#include "attention.c"
