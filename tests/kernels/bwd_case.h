// SPDX-License-Identifier: MIT
// One backward problem for an engine, its arrays, and the float64 answer.
#pragma once

#include "attention_case.h"
#include "kernels/attention/bwd_engine.h"

namespace tilekiln::test {

struct BwdCase : AttentionCase {
  bool dbias = false;
  bool head_units = false;  // a unit per query head, then sum_heads; else a unit per key head
  bool locks = false;
  int unit_keys = 256;        // of a unit: a chunk, or a half or a quarter of one
  int nsplits = 1;            // of dq_acc: chunk i adds to split i % nsplits
  bool bias_of_heads = true;  // else one for all heads
  float bias_mean = 0;
  bool bias_masks = false;  // a third of the bias, and two rows of every tile, are -inf
};

std::string describe(const BwdCase&, Dtype);

// Errors of one gradient against the reference.
struct GradientError {
  double rms = 0;      // relative to the rms of the reference
  double element = 0;  // worst |error| relative to the sum of the |terms| that make the element
};

struct BwdErrors {
  GradientError dq, dk, dv, dbias, delta, d_sink;
  std::string broken;  // what no tolerance excuses: NaN, a wrong zero, a wrong byte, a write outside
};

// Runs all stages with fresh random inputs drawn from the seed, twice: with the scratch as it is and dq_acc cleared, then
// both poisoned, dq_acc with marks of what it holds. Every bit of every gradient must be the same.
BwdErrors run(const fmha::BwdEngine&, Dtype, const BwdCase&, Guarded& scratch, unsigned seed);

}  // namespace tilekiln::test
