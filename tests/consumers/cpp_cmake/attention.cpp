// SPDX-License-Identifier: MIT
// Attention over one key: whatever the query, out is v. Prints the instances of the library it has been linked with.
#include <tilekiln/tilekiln.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int64_t kSeqlenQ = 3, kHeads = 2, kHdim = 48;

tilekiln_tensor view(std::vector<float>& data, int64_t seqlen) {
  tilekiln_tensor tensor{};
  tensor.data = data.data();
  tensor.dtype = TILEKILN_FP32;
  tensor.ndim = 4;
  tensor.device_type = TILEKILN_CPU;
  const int64_t shape[] = {1, seqlen, kHeads, kHdim};
  const int64_t stride[] = {seqlen * kHeads * kHdim, kHeads * kHdim, kHdim, 1};
  std::copy(std::begin(shape), std::end(shape), tensor.shape);
  std::copy(std::begin(stride), std::end(stride), tensor.stride);
  return tensor;
}

}  // namespace

int main() {
  std::vector<float> q(kSeqlenQ * kHeads * kHdim, 1.0f), k(kHeads * kHdim, 0.5f), v(k.size()), out(q.size());
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i);
  const tilekiln_tensor views[] = {view(q, kSeqlenQ), view(k, 1), view(v, 1), view(out, kSeqlenQ)};
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = &views[0];
  args.k = &views[1];
  args.v = &views[2];
  args.out = &views[3];
  if (tilekiln_fmha_fwd(&args) != TILEKILN_OK) {
    std::fprintf(stderr, "%s\n", tilekiln_last_error());
    return 1;
  }
  for (int64_t instance = 0; instance < tilekiln_instance_count(); ++instance) {
    std::printf("%s\n", tilekiln_instance_name(instance));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (std::abs(out[i] - v[i % v.size()]) > 1e-4f) return 2;
  }
  return 0;
}
