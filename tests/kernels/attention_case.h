// SPDX-License-Identifier: MIT
// Shared parts of the problems in the engine tests of the forward and of the backward: sizes, layouts, sequences.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "guarded.h"
#include "kernels/attention/fwd_engine.h"

namespace tilekiln::test {

using fmha::Bias;
using fmha::Dtype;

struct AttentionCase {
  std::string name;
  int batch = 1, nhead_q = 2, nhead_k = 1, seqlen_q = 64, seqlen_k = 64, hdim_q = 64, hdim_v = 64;
  int window_left = -1, window_right = -1, sink_size = 0;
  bool top_left = false;
  bool group = false;         // sequences of random lengths, padded by a few rows of NaN
  bool heads_inside = false;  // (batch, seqlen, nhead, hdim) in memory; else (batch, nhead, seqlen, hdim)
  bool sink = false, randval = false;
  float scale = 0, softcap = 0, dropout_p = 0;
  float sink_logit = 1;      // of head 0; of each further head 1 less
  bool scale_given = false;  // else 1 / sqrt(hdim_q)
  Bias bias = Bias::none;
  unsigned long long seed = 0x123456789abcULL, offset = 0xfffffff0ULL;  // the 64 lanes carry into the high word
};

// Strides in elements of an array of `rows` rows a batch; group mode has one batch that holds all sequences.
struct Layout { long long batch, head, row; };

inline Layout layout_of(const AttentionCase& t, int nhead, long long rows, int width) {
  if (t.heads_inside) return {rows * nhead * width, width, static_cast<long long>(nhead) * width};
  return {rows * nhead * width, rows * width, width};
}

// Logical lengths of the sequences of a case and where they start.
struct Sequences {
  std::vector<int> length;
  std::vector<long long> start;
  long long rows;  // of an array of one batch
};

// padding: rows after a sequence in group mode.
inline Sequences sequences(const AttentionCase& t, int seqlen, int padding, std::mt19937& random) {
  Sequences s{std::vector<int>(t.batch, seqlen), std::vector<long long>(t.batch, 0), seqlen};
  if (!t.group) return s;
  s.rows = 0;
  for (int b = 0; b < t.batch; ++b) {
    s.length[b] = int(random() % (seqlen + 1));
    s.start[b] = s.rows;
    s.rows += s.length[b] + padding;
  }
  return s;
}

}  // namespace tilekiln::test
