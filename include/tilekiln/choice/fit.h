/* SPDX-License-Identifier: MIT */
/* Fit of a tile for a problem: one rule for the libraries' choice, the C++ dispatcher and the Python binding. */
#ifndef TILEKILN_CHOICE_FIT_H
#define TILEKILN_CHOICE_FIT_H

#include "tilekiln/choice/tile_cost.h"

/* 0: made for these sizes; 1: for any; 2: for others. The least goes first. */
static inline int tilekiln_preference(int made_for_some, int holds_here) {
  return !made_for_some ? 1 : holds_here ? 0 : 2;
}

/* Cost of a kernel's tiles for a problem, and their size: products over the sizes that they cover, begun with {1, 1}. */
typedef struct tilekiln_fit { double cost, tile; } tilekiln_fit;

static inline void tilekiln_fit_add(tilekiln_fit* fit, int64_t size, int64_t tile) {
  fit->cost *= (double)tilekiln_tile_cost(size, tile);
  fit->tile *= (double)tile;
}

/* Below 0: a goes first, as it costs less or, at the same cost, is larger. 0: alike. */
static inline int tilekiln_fit_compare(const tilekiln_fit* a, const tilekiln_fit* b) {
  if (a->cost < b->cost || a->cost > b->cost) return a->cost < b->cost ? -1 : 1;
  if (a->tile < b->tile || a->tile > b->tile) return a->tile > b->tile ? -1 : 1;
  return 0;
}

#endif
