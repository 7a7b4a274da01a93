// SPDX-License-Identifier: MIT
// Common parts of launches of the ampere kernels, over arrays and over KV caches.
#pragma once

#include "kernels/attention/cuda/operands.h"
#include "kernels/attention/fmha_fwd/cuda/ampere_params.h"
#include "kernels/backends/cuda/kernel.h"

namespace tilekiln::cuda::fmha_fwd {

// The steps from one sequence of q to the next, and from one sequence or page of k and v to the next.
struct AmpereSteps { i64 q, k, v; };

// `Problem`: of fmha_fwd or over a KV cache.
template <class Problem>
void fill_operands(const Problem& p, const AmpereSteps& steps, AmpereParams* params) {
  params->q = static_cast<const uint16_t*>(p.q);
  params->k = static_cast<const uint16_t*>(p.k);
  params->v = static_cast<const uint16_t*>(p.v);
  params->q_batch = steps.q;
  params->q_head = p.q_head;
  params->q_row = p.q_row;
  params->k_page = steps.k;
  params->k_head = p.k_head;
  params->k_row = p.k_row;
  params->v_page = steps.v;
  params->v_head = p.v_head;
  params->v_row = p.v_row;
  params->hdim_q = p.hdim_q;
}

// A block of threads for a tile. What a kernel takes may go on behind these parameters: it is read from their address.
inline tilekiln_status launch_tiles(const Site& site, const Kernel* kernel, const char* function, const Build& build,
                                    const AmpereParams& params) {
  return launch(site, {kernel,
                       function,
                       {static_cast<unsigned>(params.common.tiles), 1, 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(build.shared_bytes),
                       &params,
                       false});
}

}  // namespace tilekiln::cuda::fmha_fwd
