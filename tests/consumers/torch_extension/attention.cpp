// SPDX-License-Identifier: MIT
// A PyTorch operator over a vendored library: tilekiln_consumer::attention(q, k, v, causal), each (batch, seqlen, nhead, hdim).
#include <ATen/ATen.h>
#include <tilekiln/tilekiln.h>
#include <torch/library.h>

namespace {

tilekiln_tensor view(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.dim() == 4, "attention takes fp32 of 4 dimensions");
  tilekiln_tensor result{};
  result.data = tensor.data_ptr();
  result.dtype = TILEKILN_FP32;
  result.ndim = 4;
  result.device_type = TILEKILN_CPU;
  for (int64_t i = 0; i < 4; ++i) {
    result.shape[i] = tensor.size(i);
    result.stride[i] = tensor.stride(i);
  }
  return result;
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) {
  at::Tensor out = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  const tilekiln_tensor views[] = {view(q), view(k), view(v), view(out)};
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = &views[0];
  args.k = &views[1];
  args.v = &views[2];
  args.out = &views[3];
  args.causal = causal;
  TORCH_CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK, tilekiln_last_error());
  return out;
}

}  // namespace

TORCH_LIBRARY(tilekiln_consumer, library) {
  library.def("attention(Tensor q, Tensor k, Tensor v, bool causal) -> Tensor");
}
TORCH_LIBRARY_IMPL(tilekiln_consumer, CPU, library) { library.impl("attention", &attention); }
