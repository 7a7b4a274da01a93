// SPDX-License-Identifier: MIT
// The vocabulary of tiles: eight registers of 16 rows of 64 bytes each, by number, and their products.
//   configure, release    all eight as whole tiles, of 0; none: a thread that may sleep, or call what is not known, holds none
//   load, load_t1, store  rows `stride` bytes apart; t1: of lines that are not wanted in the first-level cache
//   zero
//   dot_bf16              C += A B: A rows of pairs of bf16, B a pair a column in each row; rule.h has the order of sums
//   dot_ss, us, su, uu    C += A B of quads of bytes, each operand's signed or unsigned, modulo 2^32
//   fence                 between vector stores and the tile loads that read them
//
// TILEKILN_EMULATED_TILES makes them plain C++, with the same results bit for bit. Edges are filled up with 0 by who packs: there are no
// other configurations.
#pragma once

#ifdef TILEKILN_EMULATED_TILES
#include "kernels/backends/cpu/amx/emulated.h"
#else
#include "kernels/backends/cpu/amx/instructions.h"
#endif
