// The backward of attention in double precision, for as many heads of k as of q.
#pragma once
#include "example.hpp"

namespace example {

struct Gradients { std::vector<double> q, k, v; };
// D = rowsum(dout out); dS = P (dout v^T - D); dq = scale dS k; dk = scale dS^T q; dv = P^T dout.
inline Gradients gradients(const Arrays& arrays, const Array& dout, const Asked& asked = {}) {
  const Expected forward = attention(arrays.q, arrays.k, arrays.v, asked);
  const int64_t batch = arrays.q.shape(0), sq = arrays.q.shape(1), heads = arrays.q.shape(2), d = 64,
                sk = arrays.k.shape(1);
  Gradients result;
  result.q.resize(arrays.q.size()), result.k.resize(arrays.k.size()), result.v.resize(arrays.v.size());
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < sq; ++i) {
        const auto row = [&](int64_t at, int64_t rows) {
          return static_cast<size_t>(((b * rows + at) * heads + h) * d);
        };
        double sum = 0;
        for (int64_t x = 0; x < d; ++x)
          sum += dout[row(i, sq) + static_cast<size_t>(x)] * forward.out[row(i, sq) + static_cast<size_t>(x)];
        for (int64_t j = 0; j < sk; ++j) {
          const double weight = forward.weights[static_cast<size_t>(((b * heads + h) * sq + i) * sk + j)];
          double product = 0;
          for (size_t x = 0; x < 64; ++x) product += dout[row(i, sq) + x] * arrays.v[row(j, sk) + x];
          const double ds = weight * (product - sum) / 8;  // the scale is 1 / sqrt(64)
          for (size_t x = 0; x < 64; ++x) {
            result.q[row(i, sq) + x] += ds * arrays.k[row(j, sk) + x];
            result.k[row(j, sk) + x] += ds * arrays.q[row(i, sq) + x];
            result.v[row(j, sk) + x] += weight * dout[row(i, sq) + x];
          }
        }
      }
  return result;
}

}  // namespace example
