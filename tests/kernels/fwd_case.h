// One problem for an engine, its arrays, and the float64 answer.
#pragma once

#include <string>
#include <vector>

#include "guarded.h"
#include "tilekiln/fmha/fwd_engine.h"

namespace tilekiln::test {

using fmha::Bias;
using fmha::Dtype;
using fmha::Qscale;

enum class BiasShape { one, heads, batch_heads };  // 1x1, 1xH, BxH; of alibi slopes: [H], [H], [B, H]

struct FwdCase {
  std::string name;
  int batch = 1, nhead_q = 2, nhead_k = 1, seqlen_q = 64, seqlen_k = 64, hdim_q = 64, hdim_v = 64;
  int window_left = -1, window_right = -1, sink_size = 0;
  bool top_left = false;
  bool group = false;         // sequences of random lengths, padded by a few rows of NaN
  bool heads_inside = false;  // (batch, seqlen, nhead, hdim) in memory; else (batch, nhead, seqlen, hdim)
  bool lse = true, sink = false, randval = false;
  float scale = 0, softcap = 0, dropout_p = 0;
  bool scale_given = false;  // else 1 / sqrt(hdim_q)
  Bias bias = Bias::none;
  BiasShape bias_shape = BiasShape::heads;
  Qscale qscale = Qscale::none;
  unsigned long long seed = 0x123456789abcULL, offset = 0xfffffff0ULL;  // the 64 lanes carry into the high word
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
