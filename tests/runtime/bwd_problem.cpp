// SPDX-License-Identifier: MIT
#include "bwd_problem.h"

namespace tilekiln::test {

void BwdProblem::make() {
  const int batch = this->batch(), hq = sizes_.nhead_q, hk = sizes_.nhead_k, dq_ = sizes_.hdim_q, dv_ = sizes_.hdim_v;
  const int longest_q = *std::max_element(sizes_.sq.begin(), sizes_.sq.end());
  const int longest_k = *std::max_element(sizes_.sk.begin(), sizes_.sk.end());
  int total_q = 0, total_k = 0;
  for (int b = 0; b < batch; ++b) {
    start_q_.push_back(total_q);
    start_k_.push_back(total_k);
    total_q += sizes_.group ? sizes_.sq[static_cast<size_t>(b)] + (sizes_.padded ? 3 : 0) : longest_q;
    total_k += sizes_.group ? sizes_.sk[static_cast<size_t>(b)] + (sizes_.padded ? 5 : 0) : longest_k;
  }
  const auto rows = [&](bool query, int heads, int hdim) -> std::vector<int64_t> {
    if (sizes_.group) return {query ? total_q : total_k, heads, hdim};
    return {batch, query ? longest_q : longest_k, heads, hdim};
  };
  for (Tensor* t : {&q, &dq}) t->shape(rows(true, hq, dq_), TILEKILN_FP32);
  for (Tensor* t : {&k, &dk}) t->shape(rows(false, hk, dq_), TILEKILN_FP32);
  for (Tensor* t : {&v, &dv}) t->shape(rows(false, hk, dv_), TILEKILN_FP32);
  for (Tensor* t : {&out, &dout}) t->shape(rows(true, hq, dv_), TILEKILN_FP32);
  if (sizes_.group) {
    lse.shape({hq, total_q}, TILEKILN_FP32);
  } else {
    lse.shape({batch, hq, longest_q}, TILEKILN_FP32);
  }
  if (sizes_.bias) {
    for (Tensor* t : {&bias, &dbias}) {
      if (sizes_.group) {
        t->shape({hq, total_q, longest_k}, TILEKILN_FP32);
      } else {
        t->shape({batch, hq, longest_q, longest_k}, TILEKILN_FP32);
      }
    }
    want_dbias_.assign(dbias.data.size(), NAN);
  }
  if (sizes_.sink) {
    for (Tensor* t : {&sink, &d_sink}) t->shape({hq}, TILEKILN_FP32);
    want_d_sink_.assign(static_cast<size_t>(hq), 0.0);
  }
  if (sizes_.group) {
    start_q_.push_back(total_q);
    start_k_.push_back(total_k);
    seqstart_q.index(start_q_);
    seqstart_k.index(start_k_);
  }
  if (sizes_.padded) {
    seqlen_q.index(sizes_.sq);
    seqlen_k.index(sizes_.sk);
  }
  std::normal_distribution<float> noise;
  // Rows of padding stay NaN, in the inputs and in what is wanted of the gradients.
  want_dq_.assign(dq.data.size(), NAN);
  want_dk_.assign(dk.data.size(), NAN);
  want_dv_.assign(dv.data.size(), NAN);
  for (int b = 0; b < batch; ++b) {
    const int sq = sizes_.sq[static_cast<size_t>(b)], sk = sizes_.sk[static_cast<size_t>(b)];
    for (int h = 0; h < hq; ++h) {
      for (int i = 0; i < sq; ++i) {
        for (int d = 0; d < dq_; ++d)
          q.data[at(q, true, b, h, i) + static_cast<size_t>(d)] = noise(random_),
                                        want_dq_[at(dq, true, b, h, i) + static_cast<size_t>(d)] = 0;
        for (int d = 0; d < dv_; ++d) dout.data[at(dout, true, b, h, i) + static_cast<size_t>(d)] = noise(random_);
      }
    }
    for (int h = 0; h < hk; ++h) {
      for (int j = 0; j < sk; ++j) {
        for (int d = 0; d < dq_; ++d)
          k.data[at(k, false, b, h, j) + static_cast<size_t>(d)] = noise(random_),
                                         want_dk_[at(dk, false, b, h, j) + static_cast<size_t>(d)] = 0;
        for (int d = 0; d < dv_; ++d)
          v.data[at(v, false, b, h, j) + static_cast<size_t>(d)] = noise(random_),
                                         want_dv_[at(dv, false, b, h, j) + static_cast<size_t>(d)] = 0;
      }
    }
  }
  for (float& x : bias.data) x = noise(random_);
  for (float& x : sink.data) x = noise(random_);
  for (int b = 0; b < batch; ++b) {
    for (int h = 0; h < hq; ++h) sequence(b, h);
  }
}

// The answer in double, of one thread: ThreadSanitizer has nothing to see in it, and was most of its run.
#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("thread")))
#endif
void BwdProblem::sequence(int b, int head) {
  const int sq = sizes_.sq[static_cast<size_t>(b)], sk = sizes_.sk[static_cast<size_t>(b)],
            hk = head / (sizes_.nhead_q / sizes_.nhead_k);
  const int shift = sk - sq, left = sizes_.window_left, right = sizes_.causal ? 0 : sizes_.window_right;
  const double scale = 1 / sqrt(static_cast<double>(sizes_.hdim_q));
  const size_t nq = static_cast<size_t>(sizes_.hdim_q), nv = static_cast<size_t>(sizes_.hdim_v);
  std::vector<double> p(static_cast<size_t>(sk)), dp(static_cast<size_t>(sk)), row_out(nv);
  for (int i = 0; i < sq; ++i) {
    const float *qi = &q.data[at(q, true, b, head, i)], *gi = &dout.data[at(dout, true, b, head, i)];
    // Position of (row, key 0) in bias and lse.
    const int place = sizes_.group ? start_q_[static_cast<size_t>(b)] + i : i;
    size_t pairs = 0, at_lse = 0;
    if (sizes_.group) {
      at_lse = static_cast<size_t>(head * lse.view.stride[0] + place);
      if (sizes_.bias) pairs = static_cast<size_t>(head * bias.view.stride[0] + place * bias.view.stride[1]);
    } else {
      at_lse = static_cast<size_t>(b * lse.view.stride[0] + head * lse.view.stride[1] + place);
      if (sizes_.bias)
        pairs = static_cast<size_t>(b * bias.view.stride[0] + head * bias.view.stride[1] + place * bias.view.stride[2]);
    }
    double most = sizes_.sink ? static_cast<double>(sink.data[static_cast<size_t>(head)]) : -HUGE_VAL, sum = 0;
    for (int j = 0; j < sk; ++j) {
      const bool seen = (left < 0 || j >= i + shift - left) && (right < 0 || j <= i + shift + right);
      double s = 0;
      const float* kj = &k.data[at(k, false, b, hk, j)];
      for (size_t d = 0; d < nq; ++d) s += static_cast<double>(qi[d]) * static_cast<double>(kj[d]);
      s = s * scale + (sizes_.bias ? static_cast<double>(bias.data[pairs + static_cast<size_t>(j)]) : 0.0);
      p[static_cast<size_t>(j)] = seen ? s : -HUGE_VAL;
      most = std::max(most, p[static_cast<size_t>(j)]);
    }
    if (most > -HUGE_VAL) {
      for (double& s : p) sum += exp(s - most);
      if (sizes_.sink) sum += exp(static_cast<double>(sink.data[static_cast<size_t>(head)]) - most);
    }
    const double log_sum = sum > 0 ? most + log(sum) : -HUGE_VAL;
    lse.data[at_lse] = static_cast<float>(log_sum);
    double delta = 0;
    std::fill(row_out.begin(), row_out.end(), 0.0);
    for (int j = 0; j < sk; ++j) {
      double& pj = p[static_cast<size_t>(j)];
      pj = sum > 0 ? exp(pj - log_sum) : 0;
      const float* vj = &v.data[at(v, false, b, hk, j)];
      double dpj = 0;
      for (size_t d = 0; d < nv; ++d) {
        row_out[d] += pj * static_cast<double>(vj[d]);
        dpj += static_cast<double>(gi[d]) * static_cast<double>(vj[d]);
      }
      dp[static_cast<size_t>(j)] = dpj;
      delta += pj * dpj;
    }
    for (size_t d = 0; d < nv; ++d) out.data[at(out, true, b, head, i) + d] = static_cast<float>(row_out[d]);
    if (sizes_.sink)
      want_d_sink_[static_cast<size_t>(head)] -=
          exp(static_cast<double>(sink.data[static_cast<size_t>(head)]) - log_sum) * delta;
    double* want_dq = &want_dq_[at(dq, true, b, head, i)];
    for (int j = 0; j < sk; ++j) {
      const double pj = p[static_cast<size_t>(j)], ds = pj * (dp[static_cast<size_t>(j)] - delta);
      const float* kj = &k.data[at(k, false, b, hk, j)];
      double *want_dk = &want_dk_[at(dk, false, b, hk, j)], *want_dv = &want_dv_[at(dv, false, b, hk, j)];
      for (size_t d = 0; d < nq; ++d) {
        want_dq[d] += scale * ds * static_cast<double>(kj[d]);
        want_dk[d] += scale * ds * static_cast<double>(qi[d]);
      }
      for (size_t d = 0; d < nv; ++d) want_dv[d] += pj * static_cast<double>(gi[d]);
      if (sizes_.bias) want_dbias_[pairs + static_cast<size_t>(j)] = ds;
    }
  }
}

}  // namespace tilekiln::test
