// SPDX-License-Identifier: MIT
// Parameters of the backward by mma.sync: those of the other kernels, and where q, k and v lie, for which these have no
// tensor maps.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/params.h"

namespace tilekiln::cuda::fmha_bwd {

// Strides in elements, multiples of 8; rows are counted from where order.h says that a sequence starts. dout is
// Params::dout_rows.
struct AmpereParams {
  Params common;
  const uint16_t* q;
  const uint16_t* k;
  const uint16_t* v;
  int64_t q_batch, q_head, q_row;
  int64_t k_batch, k_head, k_row;
  int64_t v_batch, v_head, v_row;
};

}  // namespace tilekiln::cuda::fmha_bwd
