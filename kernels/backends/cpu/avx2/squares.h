// SPDX-License-Identifier: MIT
// No product of squares is assumed.
#pragma once

#define TILEKILN_SQUARES 0
