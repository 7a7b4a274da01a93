// SPDX-License-Identifier: MIT
// The arithmetic of bf16 on an x86-64 processor with dot products of its pairs (vdpbf16ps). Where they run at half the rate of fp32's
// multiply-adds or less, as on Intel's, bf16 is widened and multiplied as fp32, as on processors without them. The bits differ.
#pragma once

namespace tilekiln {

// Tells whether bf16 is multiplied as fp32 here. TILEKILN_BF16 says so, else 20 microseconds of each, timed at the first call.
bool widens_bf16() noexcept;

// The answer and its reason, for people; "" on a processor without dot products of bf16.
const char* bf16_arithmetic() noexcept;

}  // namespace tilekiln
