// SPDX-License-Identifier: MIT
// The moves engine for one target: rows are copied, planes turned in tiles that lie in registers, all else element by element.
#include "kernels/tensor/cpu/move.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _permute_moves)

// Functions by log2 of the bytes of an element.
extern "C" const tilekiln::tensor::MoveEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::move<unsigned char>, tilekiln::cpu::move<unsigned short>, tilekiln::cpu::move<unsigned>,
     tilekiln::cpu::move<unsigned long long>}};
