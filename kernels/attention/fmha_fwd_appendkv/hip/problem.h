// SPDX-License-Identifier: MIT
// The argument of the append kernel of a HIP target, by value, and a code object's constants.
#pragma once
#include "kernels/attention/hip/problem.h"

namespace tilekiln::hip {

/// Strides are in elements; k_page and v_page step from page to page, or from row to row of a contiguous cache.
struct AppendProblem {
  void* q;  // rotated in place; or null
  void *k, *v;
  const void *knew, *vnew;
  const void *rotary_cos, *rotary_sin;  // [positions][rotary_dim / 2], fp32 or of the dtype of k
  CachePlaces at;
  long long q_batch, q_head, q_row;
  long long k_page, k_head, k_key, v_page, v_head, v_key;
  long long knew_batch, knew_head, knew_row, vnew_batch, vnew_head, vnew_row;
  long long cos_row, sin_row;
  long long positions;  // rows of rotary_cos
  int seqlen_new, nhead_q, nhead_k, hdim_q, hdim_v;
  int rotary_dim;   // even; 0: none
  int interleaved;  // pairs (2i, 2i + 1); else (i, i + rotary_dim / 2)
  int rotary_fp32;
  int q_advances;  // query i is at position seqlen_k + i, else at seqlen_k
};

struct AppendBuild {
  int threads;
  int bf16;  // else fp16
  int fp8;   // neither: bytes
};

}  // namespace tilekiln::hip
