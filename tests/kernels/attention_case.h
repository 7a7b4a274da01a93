// SPDX-License-Identifier: MIT
// Shared parts of the problems in the engine tests: sizes, layouts, sequences, a row in float64, and errors beside it.
#pragma once

#include <cmath>
#include <functional>
#include <initializer_list>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "guarded.h"
#include "kernels/attention/fwd_engine.h"

namespace tilekiln::test {

using fmha::Bias;
using fmha::Dtype;
using i64 = long long;

constexpr int kRowPad = 3;  // poisoned elements between rows of an output

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

  bool masked() const { return window_left >= 0 || window_right >= 0; }
};

inline float scale_of(const AttentionCase& t) { return t.scale_given ? t.scale : 1 / std::sqrt(float(t.hdim_q)); }

inline Kind input_kind(Dtype dtype) {
  if (dtype == Dtype::fp32) return Kind::fp32;
  return dtype == Dtype::fp16 ? Kind::fp16 : dtype == Dtype::bf16 ? Kind::bf16 : Kind::fp8;
}

// Logical lengths of the sequences of a case and where they start.
struct Sequences {
  std::vector<int> length;
  std::vector<i64> start;
  i64 rows;     // of an array of one batch
  int padding;  // rows after a sequence, in group mode
};

Sequences sequences(const AttentionCase&, int seqlen, int padding, std::mt19937&);

// An array of rows with its layout, whose strides are in elements; group mode has one batch that holds all sequences.
struct Tensor {
  const Sequences& sequences;
  bool group;
  int nhead, width;
  i64 batch, head, row;
  Guarded data;

  Tensor(const AttentionCase&, Kind, const Sequences&, int nhead, int width, Flush);

  i64 offset(int b) const { return group ? sequences.start[b] * row : b * batch; }
  i64 at(int b, int h, int i, int d) const { return offset(b) + h * head + i * row + d; }
  double get(int b, int h, int i, int d) const { return data.get(at(b, h, i, d)); }
  void poison_padding();
  template <class P> void place(P*& pointer, i64& to_head, i64& to_row) const {
    pointer = data.data(), to_head = head, to_row = row;
  }
};

inline i64 lse_at(const AttentionCase& t, const Sequences& q, int b, int head, int row) {
  return (t.group ? q.start[b] : b * q.rows * t.nhead_q) + head * q.rows + row;
}

template <class Distribution>
void fill(std::initializer_list<Guarded*> arrays, std::mt19937& random, Distribution& distribution) {
  for (Guarded* x : arrays) {
    for (size_t i = 0; i < x->size; ++i) x->set(i, distribution(random));
  }
}

void fill_heads(const AttentionCase&, Guarded& slopes, Guarded& sink);

// Sets, in the problem of any engine, sizes and all that changes a score.
template <class Problem>
void set_scores(Problem& p, const AttentionCase& t, const Guarded& bias, const Guarded& slopes, const Guarded& sink) {
  p.nhead_q = t.nhead_q, p.nhead_k = t.nhead_k, p.hdim_q = t.hdim_q, p.hdim_v = t.hdim_v;
  p.softmax_scale = scale_of(t), p.softcap = t.softcap;
  p.bias = t.bias == Bias::elementwise ? bias.data() : nullptr;
  p.bias_row = t.seqlen_k;
  p.alibi_slopes = t.bias == Bias::alibi ? static_cast<float*>(slopes.data()) : nullptr;
  p.sink = t.sink ? static_cast<float*>(sink.data()) : nullptr;
  p.window_left = t.window_left, p.window_right = t.window_right, p.top_left = t.top_left;
  p.sink_keys = t.window_left >= 0 ? t.sink_size : 0;
  p.dropout_p = t.dropout_p, p.rng_seed = t.seed, p.rng_offset = t.offset;
  p.features.bias = t.bias, p.features.mask = t.masked(), p.features.dropout = t.dropout_p > 0;
  p.features.softcap = t.softcap > 0, p.features.sink = t.sink || t.sink_size > 0;
}

// One query of one head.
struct Query {
  int batch, head, row, seqlen_q, seqlen_k;
  double sink, alibi;  // -infinity and 0: none
};

// The scores of a query in float64.
struct Scores {
  std::vector<double> s;      // -infinity: not seen
  std::vector<double> slope;  // of the soft cap there
  double most, sum = 0;       // of exp(s - most), a sink logit's too; 0: nothing is seen

  double lse() const { return sum == 0 ? -INFINITY : most + std::log(sum); }
  double weight(int j) const { return sum == 0 ? 0 : std::exp(s[j] - most) / sum; }
};

// product(j): the scaled product with key j; bias(j): what is added to its score.
Scores scores_of(const AttentionCase&, const Query&, const std::function<double(int)>& product,
                 const std::function<double(int)>& bias);

// Factor of a weight by dropout.
double kept(const AttentionCase&, const Query&, int key);

// The float64 answer for one query.
struct Answer {
  std::vector<double> out, magnitude;  // magnitude[d] = sum_j P_j |V_jd|
  double lse;
};

// value(j): the row of V; scale(j): what it is multiplied with.
template <class Value, class Scale>
Answer answer_of(const AttentionCase& t, const Query& query, const Scores& scores, Value value, Scale scale) {
  Answer r{std::vector<double>(t.hdim_v, 0), std::vector<double>(t.hdim_v, 0), scores.lse()};
  for (int j = 0; j < query.seqlen_k; ++j) {
    double p = scores.weight(j);
    if (p != 0) p *= kept(t, query, j);
    if (p == 0) continue;
    p *= scale(j);
    const auto* v = value(j);
    for (int d = 0; d < t.hdim_v; ++d) {
      const double x = p * v[d];
      r.out[d] += x;
      r.magnitude[d] += std::abs(x);
    }
  }
  return r;
}

// Errors of one run against the reference.
struct Errors {
  double rms = 0;      // of out, relative to the rms of the reference
  double element = 0;  // worst |error| of an element of out, relative to sum_j P_ij |V_j| of its row
  double lse = 0;      // worst |error|
  std::string broken;  // what no tolerance excuses: NaN, a wrong zero or infinity, a wrong byte, a write outside
};

// Absolute error that is allowed beside the relative one: half of the smallest subnormal of a narrow type; elsewhere P far below
// the row's maximum may be flushed to 0.
inline double absolute_error(Kind out) { return out == Kind::fp16 ? 0x1p-25 : out == Kind::fp8 ? 0x1p-10 : 1e-30; }

size_t touched(const Guarded&);

// Gathers the errors of out and lse over their rows.
class Gathered {
 public:
  Gathered(const Guarded& out, const Guarded& lse, bool has_lse) : out_(out), lse_(lse), has_lse_(has_lse) {}
  void add(const Answer&, i64 out_at, i64 lse_at);
  Errors result();

 private:
  const Guarded &out_, &lse_;
  bool has_lse_;
  Errors errors_;
  double error2_ = 0, expected2_ = 0;
  size_t written_ = 0, written_lse_ = 0;
};

// Random bytes (batch, nhead_q, seqlen_q, seqlen_k + kRowPad): poison where there is no such pair. A sentence on what is wrong, or "".
std::string wrong_bytes(const AttentionCase&, const Sequences& q, const Sequences& k, const Guarded& randval);

// The case in words, but for its dtype and what other cases have not.
std::string describe(const AttentionCase&);

}  // namespace tilekiln::test
