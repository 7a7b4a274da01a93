// The backward of attention: in double precision, and a call of it with its arrays.
#pragma once
#include "example.hpp"

namespace example {

struct Gradients { std::vector<double> q, k, v; };
// D = rowsum(dout out); dS = P (dout v^T - D); dq = scale dS k; dk = scale dS^T q; dv = P^T dout.
inline Gradients gradients(const Arrays& arrays, const Array& dout, const Asked& asked = {}) {
  const Expected forward = attention(arrays.q, arrays.k, arrays.v, asked);
  const int64_t batch = arrays.q.shape(0), sq = arrays.q.shape(1), heads = arrays.q.shape(2), d = 64,
                sk = arrays.k.shape(1), hk = arrays.k.shape(2);
  Gradients result;
  result.q.resize(arrays.q.size()), result.k.resize(arrays.k.size()), result.v.resize(arrays.v.size());
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < sq; ++i) {
        const auto row = [&](int64_t at) { return static_cast<size_t>(((b * sq + at) * heads + h) * d); };
        const auto key = [&](int64_t at) { return static_cast<size_t>(((b * sk + at) * hk + h / (heads / hk)) * d); };
        double sum = 0;
        for (int64_t x = 0; x < d; ++x)
          sum += dout[row(i) + static_cast<size_t>(x)] * forward.out[row(i) + static_cast<size_t>(x)];
        for (int64_t j = 0; j < sk; ++j) {
          const double weight = forward.weights[static_cast<size_t>(((b * heads + h) * sq + i) * sk + j)];
          double product = 0;
          for (size_t x = 0; x < 64; ++x) product += dout[row(i) + x] * arrays.v[key(j) + x];
          const double ds = weight * (product - sum) / 8;  // the scale is 1 / sqrt(64)
          for (size_t x = 0; x < 64; ++x) {
            result.q[row(i) + x] += ds * arrays.k[key(j) + x];
            result.k[key(j) + x] += ds * arrays.q[row(i) + x];
            result.v[key(j) + x] += weight * dout[row(i) + x];
          }
        }
      }
  return result;
}

// q, k and v, the forward's results, dout, and the gradients.
struct Backward {
  Arrays arrays;
  Array dout, dq, dk, dv;
  Backward(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t nhead_q = 4, int64_t nhead_k = 4)
      : arrays(batch, seqlen_q, seqlen_k, nhead_q, nhead_k),
        dout({batch, seqlen_q, nhead_q, 64}, 4),
        dq({batch, seqlen_q, nhead_q, 64}),
        dk({batch, seqlen_k, nhead_k, 64}),
        dv({batch, seqlen_k, nhead_k, 64}) {}
  tilekiln_fmha_bwd_args args() const {
    tilekiln_fmha_bwd_args args = tilekiln_fmha_bwd_defaults();
    args.q = arrays.q.tensor(), args.k = arrays.k.tensor(), args.v = arrays.v.tensor();
    args.out = arrays.out.tensor(), args.lse = arrays.lse.tensor(), args.dout = dout.tensor();
    args.dq = dq.tensor(), args.dk = dk.tensor(), args.dv = dv.tensor();
    return args;
  }
  // Runs the forward of what a backward is asked for; false where nothing runs.
  bool forward(const Session& session, const tilekiln_fmha_bwd_args& asked,
               const tilekiln_tensor* randval = nullptr) const {
    tilekiln_fmha_fwd_args args = arrays.forward();
    args.lse = arrays.lse.tensor(), args.alibi_slopes = asked.alibi_slopes, args.randval = randval;
    args.window_left = asked.window_left, args.window_right = asked.window_right, args.mask_origin = asked.mask_origin;
    args.dropout_p = asked.dropout_p, args.rng_seed = asked.rng_seed, args.rng_offset = asked.rng_offset;
    return session.run("fmha_fwd", args);
  }
  // Of all three gradients.
  std::string verdict(const Asked& asked = {}) const {
    const Gradients expected = gradients(arrays, dout, asked);
    std::string worst = "agrees with float64";
    for (const auto& [got, want] : {std::pair{&dq, &expected.q}, {&dk, &expected.k}, {&dv, &expected.v}})
      if (const std::string said = example::verdict(*got, *want, 5e-5); said != worst) return said;
    return worst;
  }
};

}  // namespace example
