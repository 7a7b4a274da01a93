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

// Steps from one sequence to the next.
struct AmpereSteps { int64_t q, k, v; };

// `Problem`: of fmha_bwd.
template <class Problem> void fill_rows(const Problem& p, const AmpereSteps& steps, AmpereParams* params) {
  params->q = static_cast<const uint16_t*>(p.q);
  params->k = static_cast<const uint16_t*>(p.k);
  params->v = static_cast<const uint16_t*>(p.v);
  params->q_batch = steps.q;
  params->k_batch = steps.k;
  params->v_batch = steps.v;
  params->q_head = p.q_head;
  params->k_head = p.k_head;
  params->v_head = p.v_head;
  params->q_row = p.q_row;
  params->k_row = p.k_row;
  params->v_row = p.v_row;
}

}  // namespace tilekiln::cuda::fmha_bwd
