// SPDX-License-Identifier: MIT
#define TILEKILN_TARGET instructions
#define TILEKILN_WORDS instructions_of_tiles
#include "tiles_script.h"
