// SPDX-License-Identifier: MIT
// No bf16 dot product is assumed: bf16 is computed in fp32 after conversion.
#pragma once

#define TILEKILN_PAIRS 0
