// SPDX-License-Identifier: MIT
// AVX2 has no bf16 dot product: bf16 is computed in fp32 after conversion.
#pragma once

#define TILEKILN_PAIRS 0
