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

// Runs the case with fresh random inputs drawn from the seed.
Errors run(const fmha::FwdEngine&, Dtype, const FwdCase&, void* scratch, unsigned seed);

}  // namespace tilekiln::test
