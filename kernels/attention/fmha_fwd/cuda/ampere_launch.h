// Common parts of launches of the ampere kernels, over arrays and over KV caches.
#pragma once

#include "kernels/attention/cuda/operands.h"
#include "kernels/attention/fmha_fwd/cuda/ampere_row.h"
#include "kernels/backends/cuda/kernel.h"

namespace tilekiln::cuda::fmha_fwd {

// The steps from one sequence of q to the next, and from one sequence or page of k and v to the next.
struct AmpereSteps { i64 q, k, v; };

// `Problem`: of fmha_fwd or over a KV cache.
template <class Problem>
void fill_operands(const Problem& p, const AmpereSteps& steps, AmpereRow* row) {
  row->q = static_cast<const uint16_t*>(p.q);
  row->k = static_cast<const uint16_t*>(p.k);
  row->v = static_cast<const uint16_t*>(p.v);
  row->q_batch = steps.q;
  row->q_head = p.q_head;
  row->q_row = p.q_row;
  row->k_page = steps.k;
  row->k_head = p.k_head;
  row->k_row = p.k_row;
  row->v_page = steps.v;
  row->v_head = p.v_head;
  row->v_row = p.v_row;
  row->hdim_q = p.hdim_q;
}

// A block of threads for a tile.
inline tilekiln_status launch_tiles(const Site& site, const Kernel* kernel, const char* function, const Build& build,
                                    const AmpereRow& row) {
  return launch(site, {kernel,
                       function,
                       {static_cast<unsigned>(row.row.tiles), 1, 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(build.shared_bytes),
                       &row,
                       false});
}

}  // namespace tilekiln::cuda::fmha_fwd
