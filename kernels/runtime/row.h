// SPDX-License-Identifier: MIT
// An instance as the library holds it: one constexpr row. No std header, no function: a thousand rows compile in the
// time of one.
#pragma once

namespace tilekiln {

struct Row {
  unsigned long long codes;  // every axis but the integers, packed as the family's generated header says
  unsigned long long integers;  // the integer axes, alike (kernels/generated/<family>.h)
  unsigned short algorithm;     // index among the algorithms that its target has for the family (Algorithms)
  unsigned char target;         // index of the target in the fixed order of kernels/targets (Target::index)
};

}  // namespace tilekiln
