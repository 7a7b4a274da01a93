// SPDX-License-Identifier: MIT
// Fills the plain data of engines from checked arguments: what the operators of attention fill alike.
#pragma once
#include "kernels/attention/visible.h"

namespace tilekiln::fmha {

// The positions of the dimensions in q, k, v, out and their gradients, by the number of dimensions of one of them.
struct RowLayout {
  bool group;  // no batch: sequences lie one after another
  int seq, head;
  RowLayout(bool group_mode, int ndim, bool heads_first)
      : group(group_mode), seq(ndim - (heads_first ? 2 : 3)), head(ndim - (heads_first ? 3 : 2)) {}
  // Strides of an array (batch, seqlen, nhead, hdim), or (total, nhead, hdim).
  void set(const Array& array, i64* row, i64* head_step, i64* sequence) const {
    *row = array.stride[seq];
    *head_step = array.stride[head];
    *sequence = group ? *row : array.stride[0];
  }
  // Sets the steps of an array over scores: (batch, nhead, seqlen_q, seqlen_k), or (nhead, total_q, seqlen_k).
  void set_scores(const Array& array, i64* row, i64* head_step, i64* sequence) const {
    *head_step = array.ndim < 3 ? 0 : array.stride[array.ndim - 3];
    *row = array.stride[array.ndim - 2];
    *sequence = group ? *row : array.stride[0];
  }
};

template <class Args, class Problem>
void fill_dropout(const Args& args, Problem& problem) {
  problem.dropout_p = args.dropout_p;
  problem.rng_seed = args.rng_seed;
  problem.rng_offset = args.rng_offset;
}

template <class Args>
float scale_of(const Args& args, int64_t hdim_q) {
  return args.softmax_scale != nullptr ? *args.softmax_scale : 1 / __builtin_sqrtf(static_cast<float>(hdim_q));
}

// Sets the biases that are added to the scores, and the logits of sinks.
template <class Arrays, class Problem, class Steps>
void fill_biases(const Arrays& in, const RowLayout& layout, Problem& problem, Steps& steps) {
  if (in.bias.given()) {
    problem.bias = in.bias.data;
    layout.set_scores(in.bias, &problem.bias_row, &problem.bias_head, &steps.bias);
  }
  if (in.alibi_slopes.given()) {
    problem.alibi_slopes = reinterpret_cast<const float*>(in.alibi_slopes.data);
    steps.alibi = in.alibi_slopes.ndim == 2 ? in.alibi_slopes.stride[0] : 0;
  }
  if (in.sink.given()) problem.sink = reinterpret_cast<const float*>(in.sink.data);
}

template <class Arrays, class Problem, class Steps>
void fill_randval(const Arrays& in, const RowLayout& layout, Problem& problem, Steps& steps) {
  if (!in.randval.given()) return;
  problem.randval = reinterpret_cast<unsigned char*>(in.randval.data);
  layout.set_scores(in.randval, &problem.randval_row, &problem.randval_head, &steps.randval);
}

template <class Arrays, class Problem, class Steps>
void fill_lse(const Arrays& in, const RowLayout& layout, Problem& problem, Steps& steps) {
  if (!in.lse.given()) return;
  problem.lse = reinterpret_cast<float*>(in.lse.data);
  problem.lse_head = in.lse.stride[in.lse.ndim - 2];
  steps.lse = layout.group ? 1 : in.lse.stride[0];
}

// Values of one enum as those of another, by name: families number their axes by themselves.
template <class To>
constexpr To bias_as(Bias bias) {
  return bias == Bias::elementwise ? To::elementwise : bias == Bias::alibi ? To::alibi : To::none;
}
template <class From>
constexpr Bias bias_of(From bias) {
  return bias == From::elementwise ? Bias::elementwise : bias == From::alibi ? Bias::alibi : Bias::none;
}

}  // namespace tilekiln::fmha
