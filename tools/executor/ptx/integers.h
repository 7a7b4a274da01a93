// SPDX-License-Identifier: MIT
// The integer side of opcodes that floats have, too (floats.cpp).
#pragma once
#include "program.h"

namespace ptx::integers {

void add(Decode&, const Type&);
void sub(Decode&, const Type&);
void least(Decode&, const Type&);
void most(Decode&, const Type&);
void div(Decode&, const Type&);
void abs(Decode&, const Type&);
void neg(Decode&, const Type&);
void mul(Decode&, bool adds);

}  // namespace ptx::integers
