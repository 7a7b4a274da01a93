// One backward problem for an engine, its arrays, and the float64 answer.
#pragma once

#include <string>

#include "guarded.h"
#include "tilekiln/fmha/bwd_engine.h"

namespace tilekiln::test {

using fmha::Bias;
using fmha::Dtype;

struct BwdCase {
  std::string name;
  int batch = 1, nhead_q = 2, nhead_k = 1, seqlen_q = 64, seqlen_k = 64, hdim_q = 64, hdim_v = 64;
  int window_left = -1, window_right = -1, sink_size = 0;
  bool top_left = false;
  bool group = false;         // sequences of random lengths, padded by a few rows of NaN
  bool heads_inside = false;  // (batch, seqlen, nhead, hdim) in memory; else (batch, nhead, seqlen, hdim)
  bool sink = false, dbias = false, randval = false;
  bool head_units = false;  // a unit per query head, then sum_heads; else a unit per key head
  bool locks = false;
  int nsplits = 1;  // of dq_acc: chunk i adds to split i % nsplits
  float scale = 0, softcap = 0, dropout_p = 0;
  bool scale_given = false;  // else 1 / sqrt(hdim_q)
  Bias bias = Bias::none;
  bool bias_of_heads = true;  // else one for all heads
  float bias_mean = 0;
  bool bias_masks = false;  // a third of the bias, and two rows of every tile, are -inf
  unsigned long long seed = 0x123456789abcULL, offset = 0xfffffff0ULL;  // the 64 lanes carry into the high word
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

// Runs all stages with fresh random inputs drawn from the seed, twice: with the scratch as it is, then poisoned. Every bit of
// every gradient must be the same.
BwdErrors run(const fmha::BwdEngine&, Dtype, const BwdCase&, Guarded& scratch, unsigned seed);

}  // namespace tilekiln::test
