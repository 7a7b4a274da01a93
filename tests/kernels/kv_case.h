// SPDX-License-Identifier: MIT
// One attention problem over a KV cache, its arrays, and the float64 answer.
#pragma once

#include <string>

#include "fwd_case.h"
#include "kernels/attention/kv_engine.h"

namespace tilekiln::test {

using fmha::KvDtype;

enum class Cache { dense, linear, vectorized };

struct KvCase : AttentionCase {
  KvCase() { batch = nhead_k = 2, nhead_q = 4, seqlen_q = 1, seqlen_k = 100; }

  Cache cache = Cache::dense;
  int page_size = 16, leftpad = 0;
  int splits = 0;  // 0: the engine's `tile`; else `split` and `combine`
  bool lse = true, descales = false, page_scales = false;
  bool full_lengths = false;  // else random lengths up to seqlen_q and seqlen_k
  float out_scale = 1;
  bool lowest_bias = false;  // every other row of the bias holds nothing but the lowest number of its type
};

std::string describe(const KvCase&, KvDtype);

const char* name_of(KvDtype);

// `engine` attends, `rows` combines. Inputs are drawn from the seed.
Errors run(const fmha::KvEngine& engine, const fmha::KvEngine& rows, KvDtype, const KvCase&, void* scratch,
           unsigned seed);

}  // namespace tilekiln::test
