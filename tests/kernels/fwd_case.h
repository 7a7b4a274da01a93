// SPDX-License-Identifier: MIT
// One problem for an engine, its arrays, and the float64 answer.
#pragma once

#include "attention_case.h"

namespace tilekiln::test {

using fmha::Qscale;

enum class BiasShape { one, heads, batch_heads };  // 1x1, 1xH, BxH; of alibi slopes: [H], [H], [B, H]

struct FwdCase : AttentionCase {
  bool lse = true;
  BiasShape bias_shape = BiasShape::heads;
  Qscale qscale = Qscale::none;
};

std::string describe(const FwdCase&, Dtype);

// Errors of one run against the reference.
struct Errors {
  double rms = 0;      // of out, relative to the rms of the reference
  double element = 0;  // worst |error| of an element of out, relative to sum_j P_ij |V_j| of its row
  double lse = 0;      // worst |error|
  std::string broken;  // what no tolerance excuses: NaN, a wrong zero or infinity, a wrong byte, a write outside
};

// Runs the case with fresh random inputs drawn from the seed.
Errors run(const fmha::FwdEngine&, Dtype, const FwdCase&, void* scratch, unsigned seed);

}  // namespace tilekiln::test
