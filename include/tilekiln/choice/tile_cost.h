/* SPDX-License-Identifier: MIT */
/* The rows that a tile costs for a size.
 * Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that. */
#ifndef TILEKILN_CHOICE_TILE_COST_H
#define TILEKILN_CHOICE_TILE_COST_H

#include <stdint.h>

static inline int64_t tilekiln_tile_cost(int64_t size, int64_t tile) {
  const int64_t rows = (size + tile - 1) / tile * tile, forgiven = size + size / 4;
  return rows > forgiven ? rows : forgiven;
}

#endif
