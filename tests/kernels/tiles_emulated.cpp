// SPDX-License-Identifier: MIT
#define TILEKILN_TARGET emulated
#define TILEKILN_WORDS emulated_tiles
#define TILEKILN_EMULATED_TILES
#include "tiles_script.h"
