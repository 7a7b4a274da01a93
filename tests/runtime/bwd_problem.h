// SPDX-License-Identifier: MIT
// A random backward problem through the C ABI, and its gradients in double.
#pragma once
#include <math.h>
#include <stdint.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tilekiln/tilekiln.h"

namespace tilekiln::test {

struct BwdSizes {
  std::vector<int> sq = {70}, sk = {131};  // by sequence; batch mode: all alike unless `padded`
  int nhead_q = 4, nhead_k = 2, hdim_q = 40, hdim_v = 24;
  bool group = false, padded = false;  // padded: logical lengths in seqlen_q, seqlen_k; rows beyond are NaN
  bool causal = false, bias = false, sink = false;
  int window_left = -1, window_right = -1;
  bool deterministic = false;
  int workers = 0;
  unsigned seed = 1;
};

struct Tensor {
  tilekiln_tensor view = {};
  std::vector<float> data;
  std::vector<int32_t> ints;
  void shape(std::vector<int64_t> lengths, int32_t dtype) {
    view.dtype = dtype;
    view.ndim = static_cast<int32_t>(lengths.size());
    view.device_type = TILEKILN_CPU;
    int64_t count = 1;
    for (size_t i = lengths.size(); i-- > 0;) {
      view.shape[i] = lengths[i];
      view.stride[i] = count;
      count *= lengths[i];
    }
    if (dtype == TILEKILN_FP32) {
      data.assign(static_cast<size_t>(count), NAN);
      view.data = data.data();
    }
  }
  void index(const std::vector<int>& values) {
    shape({static_cast<int64_t>(values.size())}, TILEKILN_INT32);
    ints.assign(values.begin(), values.end());
    view.data = ints.data();
  }
};

// All of a problem's arrays, the forward's results in double among them.
class BwdProblem {
 public:
  explicit BwdProblem(const BwdSizes& sizes) : sizes_(sizes), random_(sizes.seed) { make(); }
  BwdProblem(const BwdProblem&) = delete;

  // Gradients are NaN before; the arguments point into this object.
  tilekiln_fmha_bwd_args args() {
    tilekiln_fmha_bwd_args args = tilekiln_fmha_bwd_defaults();
    for (Tensor* gradient : {&dq, &dk, &dv, &dbias, &d_sink})
      std::fill(gradient->data.begin(), gradient->data.end(), NAN);
    args.dout = &dout.view;
    args.q = &q.view;
    args.k = &k.view;
    args.v = &v.view;
    args.out = &out.view;
    args.lse = &lse.view;
    args.dq = &dq.view;
    args.dk = &dk.view;
    args.dv = &dv.view;
    if (sizes_.bias) args.bias = &bias.view, args.dbias = &dbias.view;
    if (sizes_.sink) args.sink = &sink.view, args.d_sink = &d_sink.view;
    if (sizes_.group) args.seqstart_q = &seqstart_q.view, args.seqstart_k = &seqstart_k.view;
    if (sizes_.padded) args.seqlen_q = &seqlen_q.view, args.seqlen_k = &seqlen_k.view;
    args.causal = sizes_.causal;
    args.window_left = sizes_.window_left;
    args.window_right = sizes_.window_right;
    args.deterministic = sizes_.deterministic;
    args.workers = sizes_.workers;
    return args;
  }

  // "" or the first gradient that is off.
  std::string compare() const {
    const struct {
      const char* name;
      const Tensor* got;
      const std::vector<double>* want;
    } all[] = {{"dq", &dq, &want_dq_},
               {"dk", &dk, &want_dk_},
               {"dv", &dv, &want_dv_},
               {"dbias", &dbias, &want_dbias_},
               {"d_sink", &d_sink, &want_d_sink_}};
    for (const auto& [name, got, want] : all) {
      for (size_t i = 0; i < want->size(); ++i) {
        const double w = (*want)[i], g = static_cast<double>(got->data[i]);
        if (std::isnan(w) ? !std::isnan(g) : !(fabs(g - w) <= 2e-5 + 2e-4 * fabs(w))) {
          return std::string(name) + "[" + std::to_string(i) + "] was " + std::to_string(g) + ", must be " +
                 std::to_string(w);
        }
      }
    }
    return "";
  }
  // All gradients, for comparing bits.
  std::vector<float> gradients() const {
    std::vector<float> all;
    for (const Tensor* gradient : {&dq, &dk, &dv, &dbias, &d_sink})
      all.insert(all.end(), gradient->data.begin(), gradient->data.end());
    return all;
  }
  int batch() const { return static_cast<int>(sizes_.sq.size()); }
  const BwdSizes& sizes() const { return sizes_; }

  Tensor dout, q, k, v, out, lse, dq, dk, dv, dbias, d_sink, bias, sink, seqstart_q, seqstart_k, seqlen_q, seqlen_k;

 private:
  void make();
  void sequence(int b, int head);
  // Element (row, col 0) of head of sequence b.
  size_t at(const Tensor& t, bool query, int b, int head, int row) const {
    const int place = (query ? start_q_ : start_k_)[static_cast<size_t>(b)] + row;
    return static_cast<size_t>(place * t.view.stride[sizes_.group ? 0 : 1] +
                               head * t.view.stride[sizes_.group ? 1 : 2]);
  }

  BwdSizes sizes_;
  std::mt19937 random_;
  std::vector<int> start_q_, start_k_;
  std::vector<double> want_dq_, want_dk_, want_dv_, want_dbias_, want_d_sink_;
};

}  // namespace tilekiln::test
