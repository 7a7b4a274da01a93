// SPDX-License-Identifier: MIT
// The parameters of the forward with functions from Python: those of the forward by mma.sync, and what these read.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/ampere_params.h"
#include "kernels/attention/function/tensor.h"

namespace tilekiln::cuda::fmha_fwd {

// score_scale_log2 is log2(e): a score function makes logits of softmax_scale q k^T.
struct FunctionParams : AmpereParams {
  float softmax_scale;
  fmha::FunctionTensor tensor[fmha::kFunctionTensors];
};

}  // namespace tilekiln::cuda::fmha_fwd
