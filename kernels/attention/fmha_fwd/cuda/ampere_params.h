// SPDX-License-Identifier: MIT
// The parameters of the forward by mma.sync: those of the other kernels, and where q, k and v lie, for which these have
// no tensor maps.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/params.h"

namespace tilekiln::cuda::fmha_fwd {

// Strides in elements, multiples of 8. With kGroup rows are counted as tile.h says, without rows_q and rows_k; k_page
// and v_page are from one page of a cache to the next, of a contiguous one and of arrays from one sequence to the next.
struct AmpereParams {
  Params common;
  const uint16_t* q;
  const uint16_t* k;
  const uint16_t* v;
  int64_t q_batch, q_head, q_row;
  int64_t k_page, k_head, k_row;
  int64_t v_page, v_head, v_row;
  int hdim_q;  // columns of q and k, a multiple of 8
};

}  // namespace tilekiln::cuda::fmha_fwd
